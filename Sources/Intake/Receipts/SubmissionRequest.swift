import AppStore
import Encoding
package import Purchases
package import Service
import Settings

/// The body of `POST /v1/receipts`, checked by the rules of ingest.
///
/// Ingest refuses here: a body that is no JSON object; a proof, user or app of a wrong type; misspelt base64; U+0000;
/// one of these over its limit (400). Two proofs, nothing to look for, no user to give it to (422). Another user or app
/// than the caller may speak for (403). Ingest stores everything else, and a worker judges it. Unknown fields are
/// stored too, because a newer app must not lose a purchase, and named in `ignored`, because a typo must not hide. A
/// senseless field beside the proof refuses nothing: it is stored as it came and named in `disregarded`.
package struct SubmissionRequest: Sendable, Equatable {
    package let submission: Submission
    /// Unknown fields; at most `ignoredMax` are named, all are stored.
    package let ignored: [String]
    /// Known fields that are not used.
    package let disregarded: [String]

    package static let ignoredMax = IntakeFields.unknownMax

    /// - Parameter apps: the apps of the configuration.
    package init(body: [UInt8], caller: Caller, apps: Set<String>) throws(Problem) {
        try self.init(IntakeFields(body: body, of: .receipt), caller: caller, apps: apps)
    }

    init(_ fields: IntakeFields, caller: Caller, apps: Set<String>) throws(Problem) {
        var fields = fields
        var contradictions: [String] = []
        let target = try fields.completedTarget { (column, _) throws(Problem) in contradictions.append(column) }
        for column in contradictions { fields.disregard(column) }
        let userID = try caller.user(fields.userID)
        let uid = fields.columns.last { $0.key == "uid" }?.value.targetText
        let isPosters = userID == nil || uid == nil || userID.isSameText(as: uid)
        let declared = Declaration(
            item: fields.item, productID: fields.productID, quantity: fields.quantity ?? fields.columnQuantity,
            priceMilliunits: fields.price, currency: fields.currency,
            uid: isPosters ? nil : uid, disregarded: fields.disregarded.isEmpty ? nil : fields.disregarded)
        var submission = Submission(
            appID: try caller.app(fields.appID, of: apps), userID: userID,
            orderID: fields.orderID, proof: try Self.proof(fields), transactionID: fields.transactionID,
            originalTransactionID: fields.originalTransactionID,
            // A user's own token never vouches for a user, whatever its scopes say.
            isVouched: caller.userID == nil && caller.scopes.contains(.claim), details: fields.details,
            target: target.isEmpty ? nil : JSONValue.object(target).canonical.text,
            declared: declared.isEmpty ? nil : declared)
        let payload = fields.signedTransaction.flatMap(CompactJWS.unverifiedPayload)
        func shown(_ name: String) -> String? { payload?[name]?.string.flatMap(Self.lookUpKey) }
        submission.installationTokenSHA256 = fields.installationTokenSHA256
        submission.showsRecordOfUser = caller.userID == nil && userID != nil && uid != nil && isPosters
        submission.shownTransactionID = shown("transactionId")
        submission.shownProductID = shown("productId")
        self.submission = submission
        guard submission.userID != nil || submission.orderID != nil else {
            throw .incomplete(.noUser, "userId or orderId must be there")
        }
        ignored = fields.unknown
        disregarded = fields.disregarded
    }

    /// The text, if it can be an id of Apple's.
    private static func lookUpKey(_ text: String) -> String? {
        (1...FieldBounds.itemBytesMax).contains(text.utf8.count) && !text.utf8.contains(0) ? text : nil
    }

    private static func proof(_ fields: IntakeFields) throws(Problem) -> Proof {
        switch (fields.signedTransaction, fields.receipt) {
        case (.some, .some): throw .incomplete(.twoProofs, "signedTransaction and receipt: send one of them")
        case (let signed?, nil): return .signedTransaction(signed)
        case (nil, let receipt?): return .receipt(receipt)
        case (nil, nil):
            guard fields.transactionID != nil || fields.originalTransactionID != nil else {
                throw .incomplete(.noProof, "signedTransaction, receipt or transactionId must be there")
            }
            return .identifier
        }
    }
}

extension IntakeFields {
    /// The old clients' `itemnum`, which may mean the units in a pack: it is compared and recorded (S0-8).
    fileprivate var columnQuantity: Int? {
        guard case .number(let text)? = columns.last(where: { $0.key == "itemnum" })?.value else { return nil }
        return Int(text)
    }
}
