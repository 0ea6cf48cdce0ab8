import AppStore
import Encoding
import Purchases

extension AppIdentity {
    /// The bundle id of a proof that was rejected as another app's, if the id looks like another build of this app:
    /// Mac Catalyst or the App Clip. Support reads it, and nothing is decided by it.
    func variant(in proof: Proof) -> String? {
        let bundleID: String? =
            switch proof {
            case .signedTransaction(let jws): CompactJWS.unverifiedPayload(of: jws)?["bundleId"]?.string
            case .receipt(let base64):
                (try? AppReceipt(unverified: base64))?.bundleId ?? (try? TransactionReceipt(base64: base64))?.bundleId
            case .identifier: nil
            }
        return bundleID.flatMap { resembles($0) ? $0 : nil }
    }
}
