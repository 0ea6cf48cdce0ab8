import Crypto
import Encoding
import Foundation
import Purchases
import Service
import Settings

/// The fields of a body, with their types and lengths checked. Receipts, orders and reports share this reader, so that
/// a record means the same wherever an app sends it.
///
/// Empty texts and null count as absent: the old clients' tables have every column from the start (S0-2). Unknown
/// fields are stored, never refused. A receipt does not fail for a field beside its proof: no paid purchase is dropped
/// for a quantity of 0. If a known field appears twice, ingest refuses the body, or in a receipt ignores both values.
struct IntakeFields: Sendable {
    enum Form {
        case receipt, order, report, installation
    }

    var appID: String?
    var userID: String?
    /// The member that names the user, as it came; the value may be empty or null.
    private(set) var userMember: JSONValue.Member?
    /// SHA-256 of the token of the installation; the token itself is kept nowhere.
    var installationTokenSHA256: [UInt8]?
    var orderID: String?
    var transactionID: String?
    var originalTransactionID: String?
    /// The proof of a receipt; nil: ids alone.
    var proof: Proof?
    /// The item that is sold under the store product; from the old clients also the store product itself (S0-1).
    var item: String?
    var quantity: Int?
    var target: [JSONValue.Member] = []
    /// The columns of the old clients' table that have no field of their own.
    var columns: [JSONValue.Member] = []

    // The fields of orders.
    var productID: String?
    var promotion: String?
    var channel: String?
    var idempotencyKey: String?
    var environment: String?
    var price: Int?
    var currency: String?

    // The fields of reports.
    var kind: String?
    var message: String?
    var appVersion: String?

    /// The data stored beside the columns of the row, as one canonical JSON object.
    private(set) var details = "{}"
    /// Unknown fields; at most `unknownMax` are named, all are stored.
    private(set) var unknown: [String] = []
    /// A receipt's known fields with senseless values: stored as they came, and not used.
    private(set) var disregarded: [String] = []
    /// The fields that were read as what they mean, in another form than they must have.
    private(set) var repaired: [FieldRepair] = []

    static let unknownMax = 100
    static let userBytesMax = FieldBounds.userBytesMax
    static let itemBytesMax = FieldBounds.itemBytesMax
    static let orderBytesMax = FieldBounds.orderBytesMax
    static let installationTokenBytesMax = 128
    /// A price in milliunits: below 2^53, so that every JSON reader takes it as it is.
    static let priceMax = FieldBounds.priceMax
    private static let targetBytesMax = 1024
    private static let quantityMax = 1_000_000_000
    /// One payment holds at most ten of a consumable (Apple: SKMutablePayment.quantity).
    private static let orderQuantityMax = 10
    private static let columnNames: Set<String> = [
        "token", "uid", "itemnum", "appsid", "vtime", "country", "ext", "finishTransaction",
    ]
    /// Statements of a post about its purchase: Apple's answer decides all of them.
    private static let saidNames = columnNames.union([
        "item", "productId", "quantity", "priceMilliunits", "currency", "target", "client", "installationToken",
        "promotion", "collectionID",
    ])
    /// Beside a proof these fields are hints as well; without a proof they are all that a post says of its purchase.
    private static let saidBesideProof = saidNames.union(["orderId", "transactionId", "originalTransactionId"])
    /// The fields that no form takes twice. A receipt's other fields are stored, and decide nothing.
    private static let receiptNames = saidBesideProof.union(["appId", "userId", "signedTransaction", "receipt"])
    private static let names = receiptNames.union([
        "promotion", "channel", "installationId", "idempotencyKey", "environment", "kind", "message", "appVersion",
        "device",
    ])
    private static let targetNames = ["server", "role", "country", "ext"]
    private static let columnBytesMax = 4096
    private static let messageBytesMax = 4096

    /// The limit on details in bytes. Only the body bounds a receipt's details, for they may be all there is of a
    /// purchase.
    private static func detailsBytesMax(_ form: Form) -> Int? {
        switch form {
        case .receipt: nil
        case .order: 64 << 10
        case .report, .installation: 16 << 10
        }
    }

    /// - Throws: 400 for a body that is no JSON object, has a wrong type or is over a limit.
    init(body: [UInt8], of form: Form) throws(Problem) {
        if form == .receipt {
            try self.init(PostedBody.object(body), of: form)
            return
        }
        let value: JSONValue
        do {
            value = try JSONValue(parsing: body)
        } catch {
            throw Problem(error)
        }
        guard case .object(let members) = value else {
            throw .malformed(.notJSON, "the body must be a JSON object", field: nil)
        }
        try self.init(members, of: form)
    }

    /// - Throws: as for a body.
    init(_ members: [JSONValue.Member], of form: Form) throws(Problem) {
        let repeated = Self.repeated(members, among: form == .receipt ? Self.receiptNames : Self.names)
        var (taken, lenient): (Set<String>, Set<String>) = ([], [])
        if form == .receipt {
            let posted = try PostedProof(members, repeated: repeated)
            taken = take(posted)
            lenient = proof == nil ? Self.saidNames : Self.saidBesideProof
        }
        var stored: [JSONValue.Member] = []
        for member in members {
            let name = member.key.plainASCII
            do throws(Problem) {
                guard !repeated.contains(name) else { throw .duplicate(name) }
                if taken.contains(name) { continue }
                if try takes(member, of: form) { continue }
            } catch {
                guard lenient.contains(name) else { throw error }
                disregard(member.key)
            }
            stored.append(member)
        }
        guard !stored.isEmpty else { return }
        details = JSONValue.object(stored).withoutSessionTokens.canonical.text
        if let bytesMax = Self.detailsBytesMax(form), details.utf8.count > bytesMax {
            throw .malformed(.tooLong, "holds more than \(bytesMax) bytes beside its own fields", field: nil)
        }
    }

    /// The names among these that appear more than once.
    private static func repeated(_ members: [JSONValue.Member], among names: Set<String>) -> Set<String> {
        var (seen, repeated): (Set<String>, Set<String>) = ([], [])
        for member in members {
            let name = member.key.plainASCII
            if names.contains(name), !seen.insert(name).inserted { repeated.insert(name) }
        }
        return repeated
    }

    /// Takes over the proof. Returns the members that say nothing else.
    private mutating func take(_ posted: PostedProof) -> Set<String> {
        proof = posted.proof
        (transactionID, originalTransactionID) = (posted.transactionID, posted.originalTransactionID)
        repaired = posted.repairs
        posted.disregarded.forEach { disregard($0) }
        return posted.taken
    }

    /// Reads a known member. Returns false if the member belongs to the details.
    private mutating func takes(_ member: JSONValue.Member, of form: Form) throws(Problem) -> Bool {
        let name = member.key.plainASCII
        switch name {
        case "appId": appID = try id(member, bytesMax: 64)
        case "userId":
            // What a language without types writes for nothing; a receipt of nobody is stored all the same.
            let isNothing = form == .receipt && [.bool(false), .object([]), .array([])].contains(member.value)
            userID = isNothing ? nil : try id(member, bytesMax: Self.userBytesMax)
            userMember = member
        case "transactionId": transactionID = try id(member, bytesMax: 64) ?? transactionID
        case "item":
            item = try Self.text(member, bytesMax: Self.itemBytesMax)
            return form == .order
        case "quantity":
            quantity = try Self.integer(member, 1...(form == .order ? Self.orderQuantityMax : Self.quantityMax))
            return form == .order
        case "target":
            try readTarget(member)
            return form == .order
        case "client":
            switch member.value {
            case .object, .null: return false
            default: throw .wrongType("client", "an object")
            }
        case _ where Self.columnNames.contains(name):
            columns.append(try Self.column(member))
            return false
        default:
            switch form {
            case .receipt: return try takesOfReceipt(member, name)
            case .order: return try takesOfOrder(member, name)
            case .report: return try takesOfReport(member, name)
            case .installation:
                if name == "installationToken" {
                    installationTokenSHA256 = try Self.digest(member)
                } else {
                    note(member.key)
                }
            }
        }
        return true
    }

    private mutating func takesOfReceipt(_ member: JSONValue.Member, _ name: String) throws(Problem) -> Bool {
        switch name {
        case "orderId": orderID = try id(member, bytesMax: Self.orderBytesMax)
        case "originalTransactionId":
            originalTransactionID = try id(member, bytesMax: 64) ?? originalTransactionID
        // The field holds no proof, or `PostedProof` would have taken it. It may be an unreadable request to
        // verifyReceipt, with the app's shared secret.
        case "signedTransaction", "receipt":
            return member.value.text.utf8.firstRange(of: "password".utf8) != nil
        // The shared secret of a request to verifyReceipt, which is kept nowhere.
        case "password": return true
        case "productId":
            productID = try id(member, bytesMax: Self.itemBytesMax)
            return false
        case "priceMilliunits":
            price = try Self.integer(member, 0...Self.priceMax)
            return false
        case "currency":
            currency = try Self.text(member, bytesMax: 16)
            return false
        case "promotion", "collectionID":
            promotion = try Self.text(member, bytesMax: Self.itemBytesMax)
            return false
        case "installationToken": installationTokenSHA256 = try Self.digest(member)
        // The field is a note for support, and decides nothing.
        case "installationId": return false
        default:
            note(member.key)
            return false
        }
        return true
    }

    private mutating func takesOfOrder(_ member: JSONValue.Member, _ name: String) throws(Problem) -> Bool {
        switch name {
        case "productId": productID = try id(member, bytesMax: Self.itemBytesMax)
        case "promotion": promotion = try id(member, bytesMax: Self.itemBytesMax)
        case "channel": channel = try Self.text(member, bytesMax: 32)
        case "installationToken": installationTokenSHA256 = try Self.digest(member)
        // The field is a note for support, and decides nothing.
        case "installationId": return false
        case "idempotencyKey": idempotencyKey = try id(member, bytesMax: 128)
        case "environment": environment = try Self.text(member, bytesMax: 32)
        case "priceMilliunits":
            price = try Self.integer(member, 0...Self.priceMax)
            return false
        case "currency":
            currency = try Self.text(member, bytesMax: 16)
            return false
        // The app posts a proof as a receipt that names the order; a proof sent here is neither checked nor kept.
        case "receipt", "signedTransaction":
            if member.value != .null, member.value != .string("") { note(member.key) }
        default:
            note(member.key)
            return false
        }
        return true
    }

    private mutating func takesOfReport(_ member: JSONValue.Member, _ name: String) throws(Problem) -> Bool {
        switch name {
        // The text is kept as well: it may name no order of ours.
        case "orderId":
            orderID = try id(member, bytesMax: Self.orderBytesMax)
            return false
        case "kind": kind = try Self.text(member, bytesMax: 64)
        case "message": message = try Self.text(member, bytesMax: Self.messageBytesMax)
        case "appVersion": appVersion = try Self.text(member, bytesMax: 64)
        // The field holds model, system and circumstances, which support asks for (S1-27).
        case "device": return false
        default:
            note(member.key)
            return false
        }
        return true
    }

    mutating func disregard(_ name: String) {
        if !disregarded.contains(name) { disregarded.append(name) }
    }

    /// Stores a member with the details, as it came.
    mutating func keep(_ member: JSONValue.Member) {
        let stored = (try? JSONValue(parsing: Array(details.utf8)).members) ?? []
        details = JSONValue.object(stored + [member]).canonical.text
    }

    /// `target`, completed from the columns of the old clients' table (S0-9): `appsid` is the server, `ext` the role.
    ///
    /// - Parameter contradiction: called for a column that differs from the target; the target counts.
    func completedTarget(_ contradiction: (_ column: String, _ part: String) throws(Problem) -> Void) throws(Problem)
        -> [JSONValue.Member]
    {
        var completed = target
        for (column, name) in [("appsid", "server"), ("ext", "role"), ("country", "country")] {
            guard let given = columns.last(where: { $0.key == column })?.value, let text = given.targetText
            else { continue }
            guard let present = JSONValue.object(completed)[name]?.targetText else {
                completed.append(.init(name, given))
                continue
            }
            if !present.isSameText(as: text) { try contradiction(column, name) }
        }
        return JSONValue.object(completed).withoutSessionTokens.members
    }

    // MARK: One field

    private static func digest(_ member: JSONValue.Member) throws(Problem) -> [UInt8]? {
        try text(member, bytesMax: installationTokenBytesMax).map { Array(SHA256.hash(data: Data($0.utf8))) }
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

    private static func integer(_ member: JSONValue.Member, _ range: ClosedRange<Int>) throws(Problem) -> Int? {
        switch member.value {
        case .null: return nil
        case .number(let text):
            guard let value = Int(text), range.contains(value) else { fallthrough }
            return value
        default: throw .wrongType(member.key, "a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
    }

    /// An id. A client that keeps ids as numbers sends one; its digits are the id, exactly as they are written.
    private mutating func id(_ member: JSONValue.Member, bytesMax: Int) throws(Problem) -> String? {
        guard case .number = member.value else { return try Self.text(member, bytesMax: bytesMax) }
        guard let digits = member.value.wholeNumber else { throw .wrongType(member.key, "a string or a whole number") }
        guard digits.utf8.count <= bytesMax else { throw .tooLong(member.key, bytesMax: bytesMax) }
        repaired.append(FieldRepair(member.key, .number))
        return digits
    }

    /// Reads the place in the game for the goods. Its members are texts; game servers are often numbered.
    private mutating func readTarget(_ member: JSONValue.Member) throws(Problem) {
        switch member.value {
        case .null: target = []
        case .object(let parts):
            try member.value.refuseDuplicates(of: Self.targetNames, in: "target.")
            for part in parts {
                switch part.key.plainASCII {
                case let name where Self.targetNames.contains(name):
                    switch part.value {
                    case .null, .number: break
                    case .string(let text):
                        guard text.utf8.count <= Self.targetBytesMax else {
                            throw .tooLong("target.\(part.key)", bytesMax: Self.targetBytesMax)
                        }
                    default: throw .wrongType("target.\(part.key)", "a string or a number")
                    }
                default: note("target.\(part.key)")
                }
            }
            target = parts
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

    private mutating func note(_ name: String) {
        guard unknown.count < Self.unknownMax else { return }
        let name = String(String.UnicodeScalarView(name.unicodeScalars.prefix(128)))
        if !unknown.contains(where: { $0.utf8.elementsEqual(name.utf8) }) { unknown.append(name) }
    }
}
