package import Foundation

/// What an error means for a receipt. Three fates and their waits; not knowing is a retry (RetriesAndRescue).
package enum Fate: Sendable, Equatable {
    /// Apple answered, or was asked and did not: one attempt more.
    case retry(Reason)
    /// Try again at this time or after this wait; nobody's fault, no attempt counted.
    case postpone(Reason, until: Date?)
    /// There is proof that this submission cannot be granted.
    case reject(Reason)
    /// Waits for a product, a policy or a person.
    case hold(Reason)
    /// Our own misconfiguration: stop asking, alert, blame no receipt.
    case halt(Reason)
}
