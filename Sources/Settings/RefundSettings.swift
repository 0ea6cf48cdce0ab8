import Purchases

extension RefundPolicy {
    /// Reads `refunds`. Absent members keep their defaults.
    ///
    /// - Throws: for thresholds that belong to another preference, are missing, or overlap.
    static func read(_ app: inout ConfigurationReader) throws(ConfigurationError) -> RefundPolicy {
        var policy = RefundPolicy()
        guard var section = try app.section("refunds") else { return policy }
        policy.preference = try section.word("preference") ?? policy.preference
        let declineFrom = try section.integer("declineFrom", in: 1...100)
        let grantUpTo = try section.integer("grantUpTo", in: 0...99)
        let givenThresholds = [("declineFrom", declineFrom), ("grantUpTo", grantUpTo)].filter { $0.1 != nil }
        if policy.preference == .byConsumption {
            guard let declineFrom else { throw section.error("declineFrom", "is missing") }
            guard let grantUpTo else { throw section.error("grantUpTo", "is missing") }
            guard grantUpTo < declineFrom else { throw section.error("grantUpTo", "must be below declineFrom") }
            policy.declineFrom = declineFrom * Revocation.whole / 100
            policy.grantUpTo = grantUpTo * Revocation.whole / 100
        } else if let given = givenThresholds.first {
            throw section.error(given.0, "needs the preference byConsumption")
        }
        policy.providesSample = try section.boolean("sampleContent") ?? policy.providesSample
        if let answerAfter = try section.duration("answerAfter") {
            guard answerAfter <= answerAfterMax else {
                throw section.error("answerAfter", "must be at most 630m (10 h 30 min)")
            }
            policy.answerAfter = answerAfter
        }
        policy.apiVersion = try section.integer("apiVersion", in: 1...2) ?? policy.apiVersion
        try section.finish()
        return policy
    }
}
