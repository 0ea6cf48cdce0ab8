package import Ledger
import Postgres
package import Service

extension LedgerError: StoreError {
    /// The answer for a database error. In no case was a part of the request stored.
    package var problem: Problem {
        switch self {
        case .busy, .unavailable: .unavailable()
        case .refused(.data), .refused(.undecodable): .internalError
        // A wrong password, a missing right or a closing server: an operator must act; then the same request succeeds.
        case .refused: .unavailable()
        }
    }
}
