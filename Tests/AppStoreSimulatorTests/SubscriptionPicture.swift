import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// A subscription as all of Apple's answers show it: subscription statuses, transaction info, history and
/// verifyReceipt.
struct SubscriptionPicture {
    let status: Int
    let transaction: SignedTransaction
    let renewal: SignedTransaction
    /// The transaction ids of the customer's history.
    let history: [String]

    var product: String? { transaction.string("productId") }
    var expires: Int64 { transaction.int("expiresDate") ?? 0 }
    var autoRenew: Int64? { renewal.int("autoRenewStatus") }
    var intent: Int64? { renewal.int("expirationIntent") }

    /// Asks for everything and expects that the answers agree.
    init(_ store: RunningSimulator, _ original: String, receipt: String) async throws {
        let answer = try await store.api(.GET, "v1/subscriptions/\(original)")
        let items = answer.objects("data").flatMap { $0["lastTransactions"] as? [[String: Any]] ?? [] }
        let item = try #require(items.first { $0["originalTransactionId"] as? String == original }, "\(answer.text)")
        status = item["status"] as? Int ?? 0
        transaction = try SignedTransaction(item["signedTransactionInfo"] as? String ?? "")
        renewal = try SignedTransaction(item["signedRenewalInfo"] as? String ?? "")
        let id = transaction.string("transactionId") ?? ""

        let info = try await store.transactionInfo(id)
        let told = try SignedTransaction(info.string("signedTransactionInfo"))
        let listed = try await store.api(.GET, "v2/history/\(original)").payloads()
        history = listed.compactMap { $0.string("transactionId") }
        let entry = try #require(listed.first { $0.string("transactionId") == id })
        for other in [told, entry] {
            var (mine, others) = (transaction.payload, other.payload)
            mine["signedDate"] = nil
            others["signedDate"] = nil
            #expect((mine as NSDictionary).isEqual(to: others))
        }
        let refunds = try await store.api(.GET, "v2/refund/lookup/\(original)").payloads()
        let isRefund =
            transaction.int("revocationDate") != nil && transaction.string("revocationType") != "FAMILY_REVOKE"
            && transaction.int("revocationReason") != 2
        #expect(refunds.contains { $0.string("transactionId") == id } == isRefund)

        let secret = store.simulator.credentials.sharedSecret
        let verified = try await store.verifyReceipt(receipt, password: secret)
        let latest = try #require(
            verified.objects("latest_receipt_info").first { $0["transaction_id"] as? String == id },
            "\(verified.text)")
        #expect(latest["product_id"] as? String == product)
        #expect(latest["expires_date_ms"] as? String == String(expires))
        #expect((latest["cancellation_date_ms"] != nil) == (transaction.int("revocationDate") != nil))
        let pending = verified.objects("pending_renewal_info")
            .first { $0["original_transaction_id"] as? String == original }
        guard let pending else {
            // Apple lists no renewal of a customer who cancels in the grace period.
            #expect(status == 4 && renewal.int("autoRenewStatus") == 0)
            return
        }
        #expect(pending["auto_renew_status"] as? String == renewal.int("autoRenewStatus").map { String($0) })
        #expect(pending["auto_renew_product_id"] as? String == renewal.string("autoRenewProductId"))
        #expect(pending["expiration_intent"] as? String == renewal.int("expirationIntent").map { String($0) })
        #expect(
            pending["grace_period_expires_date_ms"] as? String
                == renewal.int("gracePeriodExpiresDate").map { String($0) })
        #expect(
            pending["is_in_billing_retry_period"] as? String
                == (renewal.payload["isInBillingRetryPeriod"] as? Bool).map { $0 ? "1" : "0" })
    }
}
