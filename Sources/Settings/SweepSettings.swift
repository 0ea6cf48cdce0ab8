import Purchases

extension SweepPolicy {
    /// Reads `sweeps`. Absent members keep their defaults; `off` ends a rota.
    static func read(_ app: inout ConfigurationReader) throws(ConfigurationError) -> SweepPolicy {
        var policy = SweepPolicy()
        guard var section = try app.section("sweeps") else { return policy }
        policy.customersEvery = try section.rota("customersEvery", from: policy.customersEvery)
        policy.refundsEvery = try section.rota("refundsEvery", from: policy.refundsEvery)
        policy.samplePerDay = try section.integer("samplePerDay", in: 0...100_000) ?? policy.samplePerDay
        try section.finish()
        return policy
    }
}

extension ConfigurationReader {
    /// The interval of a rota: a duration from a minute to a year, or `off`.
    fileprivate mutating func rota(
        _ key: String, from standard: Duration?
    ) throws(ConfigurationError) -> Duration? {
        if let word = try text(key), word == "off" { return nil }
        guard let interval = try duration(key) else { return standard }
        guard (.seconds(60) ... .seconds(365 * 86_400)).contains(interval) else {
            throw error(key, "must be off, or from 1m to 365d")
        }
        return interval
    }
}
