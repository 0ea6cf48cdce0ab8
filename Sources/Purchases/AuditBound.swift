import Foundation

/// The bound on the rate of errors that an audit by sample proves (L5).
package enum AuditBound {
    /// With this confidence the rate is below the bound.
    package static let confidence = 0.95

    /// The rate of errors for each customer that is not exceeded, with 95 % confidence: about 3/n where nothing
    /// differs. The errors of a large population among a few customers follow Poisson's law.
    ///
    /// - Parameters:
    ///   - differences: errors among the compared customers.
    ///   - compared: customers.
    /// - Returns: nil where nobody was compared.
    package static func rate(differences: Int, compared: Int) -> Double? {
        guard compared > 0 else { return nil }
        return mean(atMost: max(0, differences)) / Double(compared)
    }

    /// The mean of Poisson's law under which so few events have a chance of 5 %.
    private static func mean(atMost events: Int) -> Double {
        // The mean lies above the events, and below this rough bound for any of them.
        var (low, high) = (Double(events), Double(events) + 4 * Double(events + 1).squareRoot() + 4)
        for _ in 0..<100 {
            let middle = (low + high) / 2
            if chance(ofAtMost: events, mean: middle) > 1 - confidence { low = middle } else { high = middle }
        }
        return high
    }

    /// The sum of Poisson's probabilities of 0 to `events`. Adds logarithms, so that a large mean does not vanish.
    private static func chance(ofAtMost events: Int, mean: Double) -> Double {
        var (logarithm, sum) = (-mean, exp(-mean))
        for event in stride(from: 1, through: events, by: 1) {
            logarithm += log(mean) - log(Double(event))
            sum += exp(logarithm)
        }
        return sum
    }
}
