import Crypto
import Foundation
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

    package static let ignoredMax = 100

    /// - Parameter apps: the apps of the configuration.
    package init(body: [UInt8], caller: Caller, apps: Set<String>) throws(Problem) {
        let value: JSONValue
        do {
            value = try JSONValue(parsing: body)
        } catch {
            throw Problem(error)
        }
        guard case .object(let members) = value else {
            throw .malformed("not_json", "the body must be a JSON object", field: nil)
        }
        let fields = try SubmissionFields(members)
        submission = Submission(
            appID: try Self.appID(fields, caller, apps), userID: try Self.userID(fields, caller),
            orderID: fields.orderID, proof: try Self.proof(fields), transactionID: fields.transactionID,
            originalTransactionID: fields.originalTransactionID,
            // A user's own token vouches for nobody, whatever its scopes say.
            isVouched: caller.userID == nil && caller.scopes.contains(.claim), details: fields.details)
        guard submission.userID != nil || submission.orderID != nil else {
            throw .incomplete("no_user", "userId or orderId must be there")
        }
        ignored = fields.unknown
    }

    private static func proof(_ fields: SubmissionFields) throws(Problem) -> Proof {
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

    private static func appID(
        _ fields: SubmissionFields, _ caller: Caller, _ apps: Set<String>
    ) throws(Problem) -> String {
        if let appID = fields.appID {
            guard caller.apps.contains(appID), apps.contains(appID) else { throw .appNotAllowed }
            return appID
        }
        let reachable = caller.apps.intersection(apps)
        guard reachable.count == 1, let appID = reachable.first else {
            throw .incomplete("no_app", "must be there: the caller has more than one app", field: "appId")
        }
        return appID
    }

    private static func userID(_ fields: SubmissionFields, _ caller: Caller) throws(Problem) -> String? {
        guard let userID = caller.userID else { return fields.userID }
        // By bytes: String's own equality takes two spellings of an accent for the same user.
        if let given = fields.userID, !given.utf8.elementsEqual(userID.utf8) { throw .otherUser }
        return userID
    }
}

extension Problem {
    init(_ error: JSONError) {
        self =
            switch error.kind {
            case .syntax: .malformed("not_json", "the body is no JSON", field: error.field)
            case .zeroCharacter:
                .malformed("zero_character", "holds U+0000, which cannot be stored", field: error.field)
            case .depth: .malformed("too_deep", "is nested deeper than \(JSONValue.depthMax)", field: error.field)
            case .number:
                .malformed(
                    "number_range",
                    "holds a number longer than \(JSONValue.numberBytesMax) bytes or beyond 1e\(JSONValue.exponentMax)",
                    field: error.field)
            }
    }
}

/// The fields of a body with their types and lengths checked. Empty texts and null count as absent: the old clients'
/// tables have every column from the start (S0-2).
private struct SubmissionFields {
    var appID: String?
    var userID: String?
    var orderID: String?
    var signedTransaction: String?
    var receipt: String?
    var transactionID: String?
    var originalTransactionID: String?
    /// What is stored beside the columns, as one canonical JSON object.
    var details = "{}"
    var unknown: [String] = []

    private static let itemBytesMax = 256
    private static let targetBytesMax = 1024
    private static let quantityMax = 1_000_000_000
    /// The columns of the old clients' table that have no field of their own (S0-1): any plain value.
    private static let columns: Set<String> = [
        "token", "uid", "itemnum", "appsid", "vtime", "country", "ext", "finishTransaction",
    ]
    private static let columnBytesMax = 4096

    init(_ members: [JSONValue.Member]) throws(Problem) {
        var stored: [JSONValue.Member] = []
        for member in members {
            let name = member.key.plainASCII
            switch name {
            case "appId": appID = try Self.text(member, bytesMax: 64)
            case "userId": userID = try Self.text(member, bytesMax: 256)
            case "orderId": orderID = try Self.text(member, bytesMax: 128)
            case "transactionId": transactionID = try Self.text(member, bytesMax: 64)
            case "originalTransactionId": originalTransactionID = try Self.text(member, bytesMax: 64)
            case "signedTransaction": signedTransaction = try Self.signedTransaction(member)
            case "receipt": receipt = try Self.receipt(member)
            case "item":
                _ = try Self.text(member, bytesMax: Self.itemBytesMax)
                stored.append(member)
            case "quantity": stored.append(try Self.quantity(member))
            case "target": stored.append(try Self.target(member, &unknown))
            case "client":
                switch member.value {
                case .object, .null: stored.append(member)
                default: throw .wrongType("client", "an object")
                }
            case _ where Self.columns.contains(name): stored.append(try Self.column(member))
            default:
                stored.append(member)
                Self.note(member.key, in: &unknown)
            }
        }
        if !stored.isEmpty { details = JSONValue.object(stored).withoutSessionTokens.canonical.text }
    }

    private static func text(_ member: JSONValue.Member, bytesMax: Int) throws(Problem) -> String? {
        switch member.value {
        case .null: return nil
        case .string(let text):
            guard text.utf8.count <= bytesMax else { throw .tooLong(member.key, bytesMax: bytesMax) }
            return text.isEmpty ? nil : text
        default: throw .wrongType(member.key, "a string")
        }
    }

    private static func signedTransaction(_ member: JSONValue.Member) throws(Problem) -> String? {
        guard let text = try text(member, bytesMax: ProofShape.signedTransactionBytesMax) else { return nil }
        guard ProofShape.isCompactJWS(text) else {
            throw .malformed("not_jws", "must be three parts of unpadded base64url", field: member.key)
        }
        return text
    }

    private static func receipt(_ member: JSONValue.Member) throws(Problem) -> String? {
        guard let text = try text(member, bytesMax: .max) else { return nil }
        guard let canonical = ProofShape.canonicalBase64(text) else {
            throw .malformed("not_base64", "must be base64", field: member.key)
        }
        return canonical
    }

    private static func quantity(_ member: JSONValue.Member) throws(Problem) -> JSONValue.Member {
        switch member.value {
        case .null: return member
        case .number(let text):
            guard let value = Int(text), (1...quantityMax).contains(value) else { fallthrough }
            return member
        default: throw .wrongType(member.key, "a whole number from 1 to \(quantityMax)")
        }
    }

    /// Where in the game the goods go. Its members are texts; game servers are often numbered.
    private static func target(
        _ member: JSONValue.Member, _ unknown: inout [String]
    ) throws(Problem) -> JSONValue.Member {
        switch member.value {
        case .null: return member
        case .object(let parts):
            for part in parts {
                switch part.key.plainASCII {
                case "server", "role", "country", "ext":
                    switch part.value {
                    case .null, .number: break
                    case .string(let text):
                        guard text.utf8.count <= targetBytesMax else {
                            throw .tooLong("target.\(part.key)", bytesMax: targetBytesMax)
                        }
                    default: throw .wrongType("target.\(part.key)", "a string or a number")
                    }
                default: note("target.\(part.key)", in: &unknown)
                }
            }
            return member
        default: throw .wrongType(member.key, "an object")
        }
    }

    private static func column(_ member: JSONValue.Member) throws(Problem) -> JSONValue.Member {
        switch member.value {
        case .object, .array: throw .wrongType(member.key, "a plain value")
        case .string(let text):
            guard text.utf8.count <= columnBytesMax else { throw .tooLong(member.key, bytesMax: columnBytesMax) }
        case .null, .bool, .number: break
        }
        return member
    }

    private static func note(_ name: String, in unknown: inout [String]) {
        guard unknown.count < SubmissionRequest.ignoredMax else { return }
        let name = String(String.UnicodeScalarView(name.unicodeScalars.prefix(128)))
        if !unknown.contains(where: { $0.utf8.elementsEqual(name.utf8) }) { unknown.append(name) }
    }
}

extension JSONValue {
    /// The same with every member `token`, wherever it stands (the old clients' records come whole in `client` too),
    /// replaced by `tokenSha256`: a session token is a secret, never checked here (S0-1, S0-11). Its hash tells two
    /// apart, and that is all it is for.
    fileprivate var withoutSessionTokens: JSONValue {
        switch self {
        case .object(let members):
            .object(
                members.map { member in
                    guard member.key.plainASCII == "token" else {
                        return .init(member.key, member.value.withoutSessionTokens)
                    }
                    guard member.value != .null else { return .init("tokenSha256", .null) }
                    let hash = SHA256.hash(data: Data(member.value.plainText.utf8))
                    return .init("tokenSha256", .string(hash.map { String(format: "%02x", $0) }.joined()))
                })
        case .array(let elements): .array(elements.map(\.withoutSessionTokens))
        case .null, .bool, .number, .string: self
        }
    }

    /// A string's text, anything else as it is written in JSON.
    private var plainText: String {
        if case .string(let text) = self { text } else { text }
    }
}

extension String {
    /// The text where it is ASCII, as every name of ours is, else nothing: for comparing what a stranger calls a field.
    ///
    /// String compares and hashes by canonical equivalence, and for that puts marks that combine with one character into
    /// order, in quadratic time: a megabyte of them, compared with a literal, would take minutes.
    fileprivate var plainASCII: String { utf8.allSatisfy { $0 < 0x80 } ? self : "" }
}
