import AppStore
import Encoding
package import Purchases
package import Service
package import Settings

/// The body of `POST /v1/receipts`, checked by the rules of ingest.
///
/// Ingest refuses here: a body that is no JSON object; a user or app of a wrong type; a proof that nobody can read;
/// U+0000; one of these over its limit (400). Two proofs, another store's purchase, signed data without a purchase,
/// nothing to look for, no user to give it to (422). Another user or app than the caller may speak for (403). Ingest
/// takes a proof out of any other wrapping, and names the repair in `repaired`. Ingest stores everything else, and a
/// worker judges it. Unknown fields are stored too, because a newer app must not lose a purchase, and named in
/// `ignored`, because a typo must not hide. A senseless field beside the proof refuses nothing: it is stored as it came
/// and named in `disregarded`.
package struct SubmissionRequest: Sendable, Equatable {
    package let submission: Submission
    /// Unknown fields; at most `ignoredMax` are named, all are stored.
    package var ignored: [String]
    /// Known fields that are not used.
    package let disregarded: [String]
    /// Fields that were repaired.
    package let repaired: [FieldRepair]

    package static let ignoredMax = IntakeFields.unknownMax

    /// - Parameters:
    ///   - apps: the apps of the configuration.
    ///   - placeholders: what names nobody where a user is named.
    package init(
        body: [UInt8], caller: Caller, apps: Set<String>, placeholders: PlaceholderUsers = .standard
    ) throws(Problem) {
        try self.init(
            IntakeFields(body: body, of: .receipt), caller: caller, apps: apps, placeholders: placeholders)
    }

    init(
        _ fields: IntakeFields, caller: Caller, apps: Set<String>, placeholders: PlaceholderUsers
    ) throws(Problem) {
        var fields = fields
        var contradictions: [String] = []
        let target = try fields.completedTarget { (column, _) throws(Problem) in contradictions.append(column) }
        for column in contradictions { fields.disregard(column) }
        // A user could name any promotion, so only the word of a service counts (S3-68).
        if fields.promotion != nil, caller.userID != nil {
            fields.promotion = nil
            fields.disregard("promotion")
        }
        let (userID, isOfPlaceholder) = try caller.poster(&fields, placeholders)
        // A record that names a placeholder names nobody.
        let uid = (fields.columns.last { $0.key == "uid" }?.value.targetText)
            .flatMap { placeholders.contains($0) ? nil : $0 }
        let isPosters = userID == nil || uid == nil || userID.isSameText(as: uid)
        let declared = Declaration(
            item: fields.item, productID: fields.productID, quantity: fields.quantity ?? fields.columnQuantity,
            priceMilliunits: fields.price, currency: fields.currency,
            uid: isPosters ? nil : uid, promotion: fields.promotion,
            disregarded: fields.disregarded.isEmpty ? nil : fields.disregarded,
            isOfPlaceholder: isOfPlaceholder ? true : nil)
        var submission = Submission(
            appID: try caller.app(fields.appID, of: apps), userID: userID,
            orderID: fields.orderID, proof: try Self.proof(fields), transactionID: fields.transactionID,
            originalTransactionID: fields.originalTransactionID,
            // A user's own token never vouches for a user, whatever its scopes say.
            isVouched: caller.userID == nil && caller.scopes.contains(.claim), details: fields.details,
            target: target.isEmpty ? nil : JSONValue.object(target).canonical.text,
            declared: declared.isEmpty ? nil : declared)
        let payload: [String: JSON]? =
            if case .signedTransaction(let jws)? = fields.proof { CompactJWS.unverifiedPayload(of: jws) } else { nil }
        func shown(_ name: String) -> String? { payload?[name]?.string.flatMap(Self.lookUpKey) }
        submission.installationTokenSHA256 = fields.installationTokenSHA256
        submission.showsRecordOfUser = caller.userID == nil && userID != nil && uid != nil && isPosters
        submission.shownTransactionID = shown("transactionId")
        submission.shownProductID = shown("productId")
        self.submission = submission
        guard submission.userID != nil || submission.orderID != nil || isOfPlaceholder else {
            throw .incomplete(.noUser, "userId or orderId must be there")
        }
        ignored = fields.unknown
        disregarded = fields.disregarded
        repaired = fields.repaired
    }

    /// The text, if it can be an id of Apple's.
    private static func lookUpKey(_ text: String) -> String? {
        (1...FieldBounds.itemBytesMax).contains(text.utf8.count) && !text.utf8.contains(0) ? text : nil
    }

    private static func proof(_ fields: IntakeFields) throws(Problem) -> Proof {
        if let proof = fields.proof { return proof }
        guard fields.transactionID != nil || fields.originalTransactionID != nil else {
            throw .incomplete(.noProof, "signedTransaction, receipt or transactionId must be there")
        }
        return .identifier
    }
}

extension IntakeFields {
    /// The old clients' `itemnum`, which may mean the units in a pack: it is compared and recorded (S0-8).
    fileprivate var columnQuantity: Int? {
        guard case .number(let text)? = columns.last(where: { $0.key == "itemnum" })?.value else { return nil }
        return Int(text)
    }
}
