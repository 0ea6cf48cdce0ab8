import Ledger
import Purchases
import Synchronization

/// Records whose purchases an installation has shown, once for each installation and customer in this process.
final class InstallationRegister: Sendable {
    /// Entries of one generation; there are two generations, and an entry takes about 150 bytes.
    private static let knownMax = 20_000

    private let known = Mutex<(young: Set<Statements.ShownCustomer>, old: Set<Statements.ShownCustomer>)>(([], []))

    /// Records the customers of these transactions. The write is committed when this returns, so that the verdict that
    /// follows sees it.
    ///
    /// - Parameter transactions: verified by Apple's own data.
    func show(_ installationID: String, _ transactions: [Transaction], in ledger: Ledger) async throws(LedgerError) {
        let shown = Set(
            transactions.compactMap { transaction in
                transaction.customerID.map {
                    Statements.ShownCustomer(
                        installationID: installationID, environment: transaction.environment, customerID: $0)
                }
            })
        let new = known.withLock { known in shown.subtracting(known.young).subtracting(known.old) }
        guard !new.isEmpty else { return }
        _ = try await ledger.run(Statements.showCustomers, Array(new))
        known.withLock { known in
            if known.young.count >= Self.knownMax { known = ([], known.young) }
            known.young.formUnion(new)
        }
    }
}
