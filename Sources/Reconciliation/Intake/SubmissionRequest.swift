package import Purchases

/// The body of `POST /v1/receipts`, read by the rules of the door.
///
/// Refused here: what is no JSON object, has a wrong type, is misspelt base64, holds U+0000, is over a limit (400);
/// two proofs, nothing to look for, nobody to give it to (422); another user or app than the caller may speak for
/// (403). Everything else is stored and judged: unknown fields too, for a newer app must not lose a purchase, and they
/// are named in `ignored`, for a typo must not hide.
package struct SubmissionRequest: Sendable, Equatable {
    package let submission: Submission
    /// Fields nobody knows; at most `ignoredMax` are named, all are stored.
    package let ignored: [String]

    package static let ignoredMax = IntakeFields.unknownMax

    /// - Parameter apps: the apps of the configuration.
    package init(body: [UInt8], caller: Caller, apps: Set<String>) throws(Problem) {
        let fields = try IntakeFields(body: body, of: .receipt)
        submission = Submission(
            appID: try caller.app(fields.appID, of: apps), userID: try caller.user(fields.userID),
            orderID: fields.orderID, proof: try Self.proof(fields), transactionID: fields.transactionID,
            originalTransactionID: fields.originalTransactionID,
            // A user's own token vouches for nobody, whatever its scopes say.
            isVouched: caller.userID == nil && caller.scopes.contains(.claim), details: fields.details)
        guard submission.userID != nil || submission.orderID != nil else {
            throw .incomplete("no_user", "userId or orderId must be there")
        }
        ignored = fields.unknown
    }

    private static func proof(_ fields: IntakeFields) throws(Problem) -> Proof {
        switch (fields.signedTransaction, fields.receipt) {
        case (.some, .some): throw .incomplete("two_proofs", "signedTransaction and receipt: send one of them")
        case (let signed?, nil): return .signedTransaction(signed)
        case (nil, let receipt?): return .receipt(receipt)
        case (nil, nil):
            guard fields.transactionID != nil || fields.originalTransactionID != nil else {
                throw .incomplete("no_proof", "signedTransaction, receipt or transactionId must be there")
            }
            return .identifier
        }
    }
}
