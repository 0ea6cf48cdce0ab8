import Foundation
package import Purchases

/// The result of a simulated year.
package struct YearReport: Sendable {
    /// One difference between the ledger and the App Store's books.
    package struct Difference: Sendable {
        /// The place of the customer in the plan; nil: no customer of the plan.
        package let customer: Int?
        package let transactionID: String
        package let what: String

        fileprivate var text: String {
            "\(customer.map { "customer \($0)" } ?? "no customer"), transaction \(transactionID): \(what)"
        }
    }

    /// The kinds of entries that Apple's books have and nobody told.
    package enum Untold: String, Sendable, CaseIterable {
        case purchase, end, state
    }

    /// The terms of the run, and the counts of its actions.
    package var head = ""
    /// The differences where a net had to bring Apple's word.
    package var differences: [Difference] = []
    /// All other failures: broken invariants, a step that did not come to rest, a strange answer.
    package var troubles: [String] = []
    /// How often nobody told an entry, by its kind and by the nets that could have told it: they were off or lost
    /// it.
    package var untold: [Untold: [Set<Net>: Int]] = [:]
    package var compared = 0
    package var granted = 0
    /// Told purchases whose owner nobody can know, each with its customer: held for a person.
    package var unclaimed: [Difference] = []
    /// Purchases of erased users, which have no owner to compare with.
    package var erased = 0
    /// The events that were compared.
    package var events = 0
    /// The events that the app's backend got as webhooks.
    package var delivered = 0
    /// Notifications that failed at Apple and that the notification history had to tell.
    package var failures = 0
    package var subscriptions = 0
    /// The questions that Apple refused with 429.
    package var limited = 0
    package var users = 0
    package var seconds = 0.0
    /// The differences that a second comparison found after the run itself had falsified two grants; nil: it did not.
    package var noticed: Int?

    package init() {}

    package var isPassed: Bool { differences.isEmpty && troubles.isEmpty }

    mutating func note(_ untold: Untold, by nets: Set<Net>) { self.untold[untold, default: [:]][nets, default: 0] += 1 }

    /// The most differences that the text lists, and the most purchases without a known owner.
    private static let differencesMax = 40

    /// The report for a person.
    package var text: String {
        var lines = [
            "\(isPassed ? "ok  " : "FAIL") \(head); \(seconds) s",
            """
                \(compared) transactions compared: \(granted) granted, \(unclaimed.count) without a known owner, \
            \(erased) of erased users left out; \(subscriptions) subscriptions, entitlements of \(users) users, \
            \(events) events and \(delivered) webhooks, \(failures) notifications that failed at Apple, \(limited) \
            questions answered with 429
            """,
        ]
        for kind in Untold.allCases {
            for (nets, count) in (untold[kind] ?? [:]).sorted(by: { $0.value > $1.value }) {
                let names = nets.map(\.rawValue).sorted().joined(separator: ", ")
                lines.append(
                    nets.count == 1
                        ? "    nobody told \(count) × \(kind.rawValue), which only the net \(names) can tell"
                        : "    nobody told \(count) × \(kind.rawValue), which these nets can tell: \(names)")
            }
        }
        for purchase in unclaimed.prefix(Self.differencesMax) {
            lines.append("    without a known owner: \(purchase.text)")
        }
        if unclaimed.count > Self.differencesMax {
            lines.append("    and \(unclaimed.count - Self.differencesMax) more without a known owner")
        }
        lines += troubles.map { "  ! \($0)" }
        for difference in differences.prefix(Self.differencesMax) { lines.append("  ! \(difference.text)") }
        if differences.count > Self.differencesMax {
            lines.append("  ! and \(differences.count - Self.differencesMax) more")
        }
        return lines.joined(separator: "\n")
    }
}
