import Encoding
import Purchases

/// The purchase objects of client libraries and engines, in which a proof may stand: Unity's receipt, the purchases of
/// react-native-iap, expo-iap, cordova-plugin-purchase and Flutter's in_app_purchase, a request to verifyReceipt, a
/// notification of Apple's.
extension ProofReader {
    /// The members that may hold a proof, the surest first: of a purchase with both, the signed transaction counts.
    /// Names are compared without case, `-` and `_`.
    private static let proofNames = [
        "signedtransaction", "signedtransactioninfo", "jwsrepresentation", "jwsrepresentationios", "jwstransaction",
        "transactionjws", "jws", "serververificationdata", "purchasetoken", "signedpayload",
    ]
    private static let receiptNames = [
        "receiptdata", "transactionreceipt", "appstorereceipt", "appreceipt", "encodedreceipt", "latestreceipt",
        "receipt", "localverificationdata", "fetchtoken", "payload", "unifiedreceipt", "applereceipt",
        "receiptcipheredpayload", "validationinfo", "base64receipt", "receiptbase64", "receiptstring",
    ]
    /// The members whose objects may hold such a member.
    private static let containerNames = [
        "verificationdata", "transaction", "purchase", "nativepurchase", "purchasedetails", "data", "response",
        "result", "json", "nativedata", "nativetransaction", "sourcereceipt", "sourcepurchase", "purchases",
        "transactions", "receipts", "receiptoffers", "lineitems",
    ]
    /// The members with other data that Apple signs.
    private static let otherKindNames = [
        "signedrenewalinfo", "signedapptransactioninfo", "jwsapptransaction", "apptransaction", "renewalinfo",
    ]
    private static let transactionNames = ["transactionid", "transactionidentifier", "purchaseid", "id"]
    private static let originalNames = [
        "originaltransactionid", "originaltransactionidentifier", "originaltransactionidentifierios",
        "originaltransactionidios",
    ]
    /// Objects inside one wrapper.
    private static let containersMax = 3

    /// The proof in an object, or in a list of one.
    ///
    /// - Parameter needsLook: as for a text.
    static func unwrap(_ value: JSONValue, _ layers: Layers, needsLook: Bool) -> Outcome {
        guard layers.wrappers > 0 else { return .unreadable }
        var layers = layers
        layers.wrappers -= 1
        switch value {
        case .object: return search(value, layers, depth: 0, needsLook).adding([.wrapper])
        case .array(let elements):
            guard elements.count != 1 else {
                return search(elements[0], layers, depth: 0, needsLook).adding([.wrapper])
            }
            let hasProof = elements.prefix(2).contains { search($0, layers, depth: 0, needsLook).isProof }
            return hasProof ? .refused(.several) : .unreadable
        default: return .unreadable
        }
    }

    private static func search(_ value: JSONValue, _ layers: Layers, depth: Int, _ needsLook: Bool) -> Outcome {
        guard case .object(let members) = value, depth < containersMax else { return .unreadable }
        let object = WrapperObject(members)
        var refusal: Refusal?
        func found(among names: [String], _ needsLook: Bool) -> Outcome? {
            for name in names {
                guard let (key, value) = object.members[name] else { continue }
                let outcome =
                    switch value {
                    case .string(let text) where needsLook: read(text, layers, needsLook: true)
                    case .string(let text): plain(text, layers)
                    case .object: search(value, layers, depth: depth + 1, needsLook)
                    case .array(let elements) where elements.count == 1:
                        search(elements[0], layers, depth: depth + 1, needsLook)
                    default: Outcome.unreadable
                    }
                switch outcome {
                case .found where object.contradicted.contains(name): return .refused(.several)
                case .found(var proof):
                    proof.member = key
                    proof.transactionID = proof.transactionID ?? object.id(among: transactionNames)
                    proof.originalTransactionID = proof.originalTransactionID ?? object.id(among: originalNames)
                    return .found(proof)
                case .refused(let why): refusal = refusal ?? why
                case .unreadable: break
                }
            }
            return nil
        }
        // First what looks like a proof, wherever it stands: a misleading name loses no purchase.
        if let proof = found(among: proofNames + receiptNames + containerNames, true) { return proof }
        if refusal == .otherStore || object.isOfOtherStore { return .refused(.otherStore) }
        if !needsLook, refusal == nil, let proof = found(among: receiptNames + containerNames, false) { return proof }
        if refusal == nil { _ = found(among: otherKindNames, true) }
        return refusal.map { .refused($0) } ?? .unreadable
    }
}

extension ProofReader {
    /// Apple's ids in a purchase object that holds no proof, as an object, as text or in base64: StoreKit's
    /// `jsonRepresentation`, the purchase of a library whose receipt is empty. Nil where there is none. The ids are a
    /// question to Apple, as ids in the post's own fields are.
    static func ids(in value: JSONValue) -> (transactionID: String?, originalTransactionID: String?)? {
        let object: JSONValue? =
            switch value {
            case .array(let elements) where elements.count == 1: elements[0]
            case .string(let text): DamagedText(text).json ?? jsonInBase64(text)
            default: value
            }
        guard case .object(let members)? = object else { return nil }
        let purchase = WrapperObject(members)
        guard !purchase.isOfOtherStore else { return nil }
        let transactionID = purchase.id(among: transactionNames).flatMap(\.longEnough)
        let originalID = purchase.id(among: originalNames).flatMap(\.longEnough)
        return transactionID == nil && originalID == nil ? nil : (transactionID, originalID)
    }

    private static func jsonInBase64(_ text: String) -> JSONValue? {
        guard let canonical = ProofShape.canonicalBase64(text),
            let octets = Base64.decodeStandard(Array(canonical.utf8)[...]), octets.first == UInt8(ascii: "{")
        else { return nil }
        return try? JSONValue(parsing: octets)
    }

    /// The proof in a text that need not look like one. The proof must be clean, as a post of it alone would be: what
    /// has more layers than may be taken off is no proof.
    private static func plain(_ text: String, _ layers: Layers) -> Outcome {
        let outcome = read(text, layers, needsLook: false)
        guard case .found(let found) = outcome,
            case .found(let again) = read(found.proof.payload, Layers(), needsLook: false),
            again.proof == found.proof, again.repairs.isEmpty
        else { return outcome.isProof ? .unreadable : outcome }
        return outcome
    }
}

extension String {
    /// The text, if it is as long as Apple's ids are. Short numbers may be anything.
    fileprivate var longEnough: String? { utf8.count >= 10 ? self : nil }
}

extension ProofReader.Outcome {
    var isProof: Bool { if case .found = self { true } else { false } }
}

/// The members of an object, by their names without case, `-` and `_`. Of equal names the last counts, and a proof under
/// names that contradict one another is none.
private struct WrapperObject {
    private static let nameBytesMax = 40
    private static let idBytesMax = 64

    let members: [String: (key: String, value: JSONValue)]
    /// Names that stand twice with different values.
    private(set) var contradicted: Set<String> = []

    init(_ members: [JSONValue.Member]) {
        var named: [String: (key: String, value: JSONValue)] = [:]
        for member in members where member.key.utf8.count <= Self.nameBytesMax {
            var name: [UInt8] = []
            for byte in member.key.utf8 where byte != UInt8(ascii: "-") && byte != UInt8(ascii: "_") {
                name.append((0x41...0x5A).contains(byte) ? byte | 0x20 : byte)
            }
            // Known names are ASCII. Others are not compared, because String would compare them as equivalents.
            guard name.allSatisfy({ $0 < 0x80 }) else { continue }
            let folded = String(decoding: name, as: UTF8.self)
            if let other = named.updateValue((member.key, member.value), forKey: folded), other.value != member.value {
                contradicted.insert(folded)
            }
        }
        self.members = named
    }

    private func text(_ name: String) -> String? {
        guard case .string(let text)? = members[name]?.value, !text.isEmpty else { return nil }
        return text
    }

    /// The first of these members that can be an id of a transaction at Apple: digits. A short `id` may be anything.
    func id(among names: [String]) -> String? {
        for name in names {
            let text: String? =
                switch members[name]?.value {
                case .string(let text)?: text
                case .some(let value): value.wholeNumber
                case nil: nil
                }
            guard let text, (name == "id" ? 10 : 1)...Self.idBytesMax ~= text.utf8.count,
                text.utf8.allSatisfy({ (0x30...0x39).contains($0) })
            else { continue }
            return text
        }
        return nil
    }

    /// Whether the object says that its purchase is another store's.
    var isOfOtherStore: Bool {
        for name in ["store", "platform", "source", "type", "appstore"] {
            guard let text = text(name), text.utf8.count <= Self.nameBytesMax else { continue }
            let word = text.lowercased()
            if Self.otherStores.contains(where: { word.contains($0) }) { return true }
        }
        if text("orderid")?.utf8.starts(with: "GPA.".utf8) == true { return true }
        if text("packagename") != nil, text("purchasetoken") != nil { return true }
        return Self.otherNames.contains { text($0) != nil }
    }

    private static let otherStores = [
        "google", "play_store", "playstore", "android", "amazon", "huawei", "samsung", "galaxy", "xiaomi", "udp",
        "microsoft", "windows", "onestore", "steam",
    ]
    /// The members that only other stores' purchases have.
    private static let otherNames = [
        "purchasetokenandroid", "packagenameandroid", "dataandroid", "signatureandroid", "inapppurchasedata",
        "inappdatasignature", "amazonreceipt", "receiptid",
    ]
}
