import Encoding
package import Foundation

extension ServerAPIClient {
    /// Apple's current data about one transaction (Get Transaction Info): a signed transaction.
    ///
    /// - Parameter transactionId: also an originalTransactionId, which gives the first transaction of its chain; no
    ///   appTransactionId.
    /// - Throws: not found is `.api` with 4040010 or 4040005, and retryable: a new purchase may take a while to show.
    ///   `.api` with 4000006 or 4000048 for an id that is none.
    package func transactionInfo(
        _ transactionId: String, in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<String> {
        try await ask(
            Request(.transactionInfo, transactionId) { (body) throws(FieldMismatch) in
                try AppleFields(body).required("signedTransactionInfo")
            }, in: environments)
    }

    /// The download of the app that a purchase belongs to (Get App Transaction Info): a signed app transaction.
    ///
    /// - Parameter id: any transactionId, originalTransactionId or appTransactionId of the customer.
    /// - Throws: `.api` with 4040019, not retryable, for a customer who has none.
    package func appTransactionInfo(
        ofCustomerWith id: String, in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<String> {
        try await ask(
            Request(.appTransactionInfo, id) { (body) throws(FieldMismatch) in
                try AppleFields(body).required("signedAppTransactionInfo")
            }, in: environments)
    }

    /// Tells Apple that the customer has got the purchase, as the app does on the device (Finish Transaction).
    ///
    /// Finishing a finished transaction changes nothing.
    @discardableResult package func finishTransaction(
        _ transactionId: String, in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<Void> {
        try await ask(Request(.finishTransaction, transactionId), in: environments)
    }

    /// Ties a purchase made outside of the app to an account of ours (Set App Account Token).
    ///
    /// Every transaction of the chain carries the token from then on; setting it again replaces it.
    /// - Throws: `.api` with 4000187, not retryable, if the id is not the first of its chain; 4000185 for a purchase
    ///   that is shared by a family member.
    @discardableResult package func setAppAccountToken(
        _ token: UUID, ofPurchase originalTransactionId: String, in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<Void> {
        let body = JSON.object(["appAccountToken": .string(token.uuidString.lowercased())])
        return try await ask(Request(.setAppAccountToken, originalTransactionId, body: body), in: environments)
    }
}
