package import Ledger
import Postgres
package import Service

extension LedgerError: StoreError {
    /// Nothing was half-stored in any case.
    package var problem: Problem {
        switch self {
        case .busy, .unavailable: .unavailable()
        case .refused(.data), .refused(.undecodable): .internalError
        // Wrong password, missing right, closing: a person's work, and the same request is right afterwards.
        case .refused: .unavailable()
        }
    }
}
