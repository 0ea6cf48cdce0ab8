import Foundation
import Purchases
import Testing

/// Goal: the answer to Apple about a refund, and the reasons to tell Apple nothing (B11, P33). Method: every
/// combination of what the rules read against an oracle written from the table of ``AppPolicy/answer(to:_:edit:age:)``,
/// and of every answer Apple's own rules (AppleFacts 3.5).
@Suite struct RefundAnswerTests {
    private static let askedAt = DecisionTests.received
    private static let request = RefundRequest(
        notificationID: UUID(), appID: "game", environment: Transaction.production, transactionID: "1000",
        originalID: "1000", reason: "OTHER", askedAt: askedAt)

    private static func facts(_ change: (inout RefundFacts) -> Void = { _ in }) -> RefundFacts {
        var facts = RefundFacts(
            isKnown: true, isDelivered: true, kind: .consumable, productID: "coins", userID: "u1", hasConsent: true)
        change(&facts)
        return facts
    }

    private static func policy(_ change: (inout RefundPolicy) -> Void = { _ in }) -> AppPolicy {
        DecisionTests.policy { change(&$0.refunds) }
    }

    private static func sent(_ facts: RefundFacts, _ policy: AppPolicy, _ edit: RefundEdit? = nil) -> RefundStatement? {
        guard case .send(let statement) = policy.answer(to: request, facts, edit: edit, age: 36_000) else { return nil }
        return statement
    }

    @Test("why Apple is told nothing: the first row of the table that holds, of every combination")
    func silences() {
        let refunds: [Date?] = [
            nil, Self.askedAt.addingTimeInterval(-1), Self.askedAt, Self.askedAt.addingTimeInterval(60),
        ]
        var seen: Set<RefundSilence> = []
        for flags in 0..<128 {
            for refundedAt in refunds {
                for age in [0, 43_199, 43_200, 90_000] as [TimeInterval] {
                    let has = { (bit: Int) in flags >> bit & 1 > 0 }
                    let edit = has(0) ? RefundEdit(withhold: true) : has(1) ? RefundEdit(sendNow: true) : nil
                    let facts = Self.facts {
                        $0.isKnown = has(2)
                        $0.isShared = has(3)
                        $0.isErased = has(4)
                        $0.hasConsent = has(5)
                        $0.refundedAt = refundedAt
                    }
                    var policy = Self.policy()
                    policy.mode = has(6) ? .shadow : .live
                    let rows: [(Bool, RefundSilence)] = [
                        (age >= 43_200, .tooLate), (has(0), .withheld), (has(6), .shadow), (!has(2), .notKnown),
                        (refundedAt.map { $0 >= Self.askedAt } ?? false, .decided), (has(3), .shared),
                        (has(4), .erased),
                        (!has(5), .noConsent),
                    ]
                    let expected = rows.first { $0.0 }?.1
                    switch policy.answer(to: Self.request, facts, edit: edit, age: age) {
                    case .silence(let reason):
                        #expect(reason == expected)
                        seen.insert(reason)
                    case .send: #expect(expected == nil)
                    }
                }
            }
        }
        #expect(
            seen == Set(RefundSilence.allCases).subtracting([.superseded, .refused]),
            "only the rows of other requests and Apple's answer give these two")
    }

    @Test("Apple's rules hold for every answer: of every kind, delivery, report, edit, preference and version")
    func rules() {
        let percentages: [Int?] = [nil, 0, 1, 40_000, 99_999, 100_000, 170_000]
        let deliveries: [RefundStatement.Delivery?] = [nil] + RefundStatement.Delivery.allCases
        let preferences: [RefundStatement.Preference?] = [nil] + RefundStatement.Preference.allCases
        var sent = 0
        for kind in [nil] + Transaction.Kind.allCases {
            for delivery in deliveries {
                for consumed in percentages {
                    for preference in preferences {
                        for setting in RefundPolicy.Preference.allCases {
                            for flags in 0..<16 {
                                let has = { (bit: Int) in flags >> bit & 1 > 0 }
                                let facts = Self.facts {
                                    $0.kind = kind
                                    $0.productID = "not sold here"
                                    $0.isDelivered = has(0)
                                    $0.expires = has(1)
                                    $0.isAdvancedCommerce = has(2)
                                    $0.consumed = consumed
                                }
                                let policy = Self.policy {
                                    $0.preference = setting
                                    $0.declineFrom = 60_000
                                    $0.grantUpTo = 10_000
                                    $0.apiVersion = has(3) ? 1 : 2
                                }
                                let edit = RefundEdit(delivery: delivery, preference: preference)
                                guard let statement = Self.sent(facts, policy, edit) else {
                                    Issue.record("it is sent")
                                    continue
                                }
                                let isAuto = kind == .autoRenewable || kind == nil && has(1)
                                let percentage = statement.percentage
                                let isPercentageRight =
                                    isAuto
                                    ? percentage == nil
                                    : statement.delivery == .delivered
                                        ? percentage.map((0...100_000).contains) ?? true : percentage == 0
                                let isPreferenceRight =
                                    isAuto || statement.preference != .grantProrated
                                    || percentage.map((1..<100_000).contains) ?? false
                                if statement.isAutoRenewable == isAuto, isPercentageRight, isPreferenceRight,
                                    statement.delivery == delivery ?? (has(0) ? .delivered : .other),
                                    statement.apiVersion == (has(2) || has(3) ? 1 : 2)
                                {
                                    sent += 1
                                } else {
                                    Issue.record("\(facts) \(edit) \(setting): \(statement)")
                                }
                            }
                        }
                    }
                }
            }
        }
        #expect(sent == 5 * 6 * 7 * 5 * 4 * 16)
    }

    @Test("what the app would like, by what was used: table")
    func preferences() {
        typealias Row = (RefundPolicy.Preference, isDelivered: Bool, consumed: Int?, RefundStatement.Preference)
        let rows: [Row] = [
            (.noPreference, true, 50_000, .unsaid), (.noPreference, false, nil, .unsaid),
            (.decline, true, nil, .decline), (.decline, false, nil, .grantFull),
            (.grant, true, 100_000, .grantFull), (.grant, false, nil, .grantFull),
            (.byConsumption, true, nil, .unsaid), (.byConsumption, true, 0, .grantFull),
            (.byConsumption, true, 10_000, .grantFull), (.byConsumption, true, 10_001, .grantProrated),
            (.byConsumption, true, 59_999, .grantProrated), (.byConsumption, true, 60_000, .decline),
            (.byConsumption, true, 100_000, .decline), (.byConsumption, false, 70_000, .grantFull),
        ]
        for row in rows {
            let policy = Self.policy {
                $0.preference = row.0
                $0.declineFrom = 60_000
                $0.grantUpTo = 10_000
            }
            let statement = Self.sent(
                Self.facts {
                    $0.isDelivered = row.isDelivered
                    $0.consumed = row.consumed
                }, policy)
            #expect(statement?.preference == row.3, "\(row)")
            #expect(statement?.percentage == (row.isDelivered ? row.consumed : 0), "\(row)")
        }
    }

    @Test("what is known goes out as it is, and support's edit goes before it")
    func statement() {
        let token = UUID()
        let facts = Self.facts {
            $0.consumed = 25_000
            $0.appAccountToken = token
        }
        let expected = RefundStatement(
            apiVersion: 2, isAutoRenewable: false, providesSample: true, delivery: .delivered, percentage: 25_000,
            preference: .decline, appAccountToken: token)
        let policy = Self.policy {
            $0.preference = .decline
            $0.providesSample = true
        }
        #expect(Self.sent(facts, policy) == expected)
        var edited = expected
        edited.percentage = 80_000
        edited.preference = .grantProrated
        #expect(Self.sent(facts, policy, RefundEdit(percentage: 80_000, preference: .grantProrated)) == edited)
        edited.percentage = 0
        edited.delivery = .serverOutage
        edited.preference = .unsaid
        #expect(Self.sent(facts, policy, RefundEdit(delivery: .serverOutage, preference: .unsaid)) == edited)
        // The catalogue says the kind where Apple does not.
        #expect(Self.sent(Self.facts { ($0.kind, $0.productID) = (nil, "pass") }, policy)?.isAutoRenewable == true)
    }

    @Test("an edit that Apple would not take is refused by the part that is wrong")
    func objections() {
        typealias Row = (RefundEdit, (inout RefundFacts) -> Void, String?)
        let nothing = { (_: inout RefundFacts) in }
        let undelivered = { (facts: inout RefundFacts) in facts.isDelivered = false }
        let subscription = { (facts: inout RefundFacts) in facts.kind = .autoRenewable }
        let used = { (facts: inout RefundFacts) in facts.consumed = 30_000 }
        let rows: [Row] = [
            (RefundEdit(percentage: 40_000), nothing, nil), (RefundEdit(percentage: 100_001), nothing, "percentage"),
            (RefundEdit(percentage: -1), nothing, "percentage"), (RefundEdit(percentage: 1), undelivered, "percentage"),
            (RefundEdit(percentage: 0), undelivered, nil),
            (RefundEdit(delivery: .delivered, percentage: 1), undelivered, nil),
            (RefundEdit(delivery: .wrongItem, percentage: 1), nothing, "percentage"),
            (RefundEdit(percentage: 0), subscription, "percentage"),
            (RefundEdit(preference: .grantProrated), subscription, nil),
            (RefundEdit(preference: .grantProrated), nothing, "preference"),
            (RefundEdit(preference: .grantProrated), used, nil),
            (RefundEdit(percentage: 100_000, preference: .grantProrated), used, "preference"),
            (RefundEdit(percentage: 1, preference: .grantProrated), nothing, nil),
            (RefundEdit(delivery: .other, preference: .grantProrated), used, "preference"),
            (RefundEdit(preference: .decline), undelivered, nil), (RefundEdit(withhold: true), undelivered, nil),
        ]
        for (edit, change, field) in rows {
            let objection = Self.policy().objection(to: edit, Self.facts(change))
            #expect(objection?.split(whereSeparator: { !$0.isLetter }).first.map(String.init) == field, "\(edit)")
        }
    }
}
