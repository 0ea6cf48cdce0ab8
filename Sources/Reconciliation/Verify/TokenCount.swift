import Metrics
import Purchases

extension Verdict {
    /// Counts the purchases that carry a token, by whether the token is anybody's here: an order, or registered. An app
    /// whose client library makes tokens by itself shows here as an app of unknown tokens (F11).
    func countTokens() {
        guard case .transactions(let entries) = decisions else { return }
        for entry in entries where entry.transaction.appAccountToken != nil {
            guard let isKnown = entry.isTokenKnown else { continue }
            Counter(
                label: "makegood_account_tokens_total",
                dimensions: [("app", appID), ("known", isKnown ? "true" : "false")]
            ).increment()
        }
    }
}

extension Verdict.Entry {
    /// Whether the purchase's token is an order or registered. Nil: the decision does not say it, because a person or
    /// the chain named the owner.
    var isTokenKnown: Bool? {
        switch decision {
        case .held(.foreignToken), .held(.tokenDisputed): return false
        case .grant(_, let source), .provisional(_, let source):
            switch source {
            case .orderToken, .userToken: return true
            case .support, .chain, .chainOwner, .shared, .transfer: return nil
            default: return false
            }
        case .held, .open, .rejected: return nil
        }
    }
}
