package import AppStore
package import Encoding
import Foundation
package import Purchases

/// Finds the proof in the value of a field, whatever its wrapping. Pure, and bounded: each layer that is taken off is
/// counted (``Layers``), and each takes linear time.
///
/// A clean proof is taken as it is, after the checks of ``ProofShape`` and a look at its beginning. Everything else
/// here runs for other values alone. The reader believes nothing: a worker verifies what is found.
package enum ProofReader {
    /// The field in which a proof stands.
    package enum Field: String, Sendable {
        case signedTransaction, receipt
    }

    package enum Outcome: Sendable, Equatable {
        case found(FoundProof)
        /// The value is readable, and is no proof of a purchase at Apple.
        case refused(Refusal)
        case unreadable
    }

    package enum Refusal: Sendable, Equatable {
        /// The purchase of another store, such as Google Play.
        case otherStore
        /// Data that Apple signs, and that is no transaction.
        case otherKind(SignedDataKind)
        case tooLong
        /// Several purchases in one field.
        case several
    }

    /// The layers that may still be taken off.
    struct Layers {
        /// JSON objects with a proof: one, and one inside of it.
        var wrappers = 2
        var base64 = 2
        var notifications = 1
        /// JSON strings around a text.
        var quoted = 3
    }

    /// The proof in the text of a field.
    package static func read(_ text: String, in field: Field) -> Outcome {
        var outcome = read(text, Layers(), needsLook: false)
        // Short words are base64 too. Only what looks like a receipt is taken for one in the field of another proof.
        if field == .signedTransaction, case .found(let found) = outcome, case .receipt(let base64) = found.proof,
            look(atBase64: base64) < .beginning
        {
            return .unreadable
        }
        outcome.note(in: field)
        return outcome
    }

    /// The proof in an object that a client sent as the value of a field.
    package static func read(_ value: JSONValue, in field: Field) -> Outcome {
        var outcome = unwrap(value, Layers(), needsLook: false)
        outcome.note(in: field)
        return outcome
    }

    /// The proof in the members of the body itself, such as `transactionReceipt`.
    package static func read(body members: [JSONValue.Member]) -> Outcome {
        unwrap(.object(members), Layers(), needsLook: true)
    }

    // MARK: Texts

    /// - Parameter needsLook: whether a receipt must look like one, and a JWS like Apple's. False where the field or
    ///   its name says that the text is a proof.
    static func read(_ text: String, _ layers: Layers, needsLook: Bool) -> Outcome {
        if ProofShape.isCompactJWS(text) { return signed(text, layers, needsLook) }
        if let canonical = ProofShape.canonicalBase64(text) { return encoded(canonical, layers, needsLook) }
        return repaired(text, layers, needsLook)
    }

    /// The proof in a text that is no clean one.
    private static func repaired(_ text: String, _ layers: Layers, _ needsLook: Bool) -> Outcome {
        var damaged = DamagedText(text)
        while true {
            if let value = damaged.json {
                switch value {
                case .object, .array:
                    return unwrap(value, layers, needsLook: needsLook).adding(damaged.repairs)
                case .string(let inner) where layers.quoted > 0:
                    var layers = layers
                    layers.quoted -= 1
                    return read(inner, layers, needsLook: needsLook).adding(damaged.repairs + [.quotes])
                default: break
                }
            }
            guard damaged.takeOffALayer() else { break }
        }
        if let (jws, repairs) = damaged.compactJWS {
            return signed(jws, layers, needsLook).adding(repairs)
        }
        if let (canonical, repairs) = damaged.hexadecimal {
            return encoded(canonical, layers, needsLook).adding(repairs)
        }
        if let (canonical, repairs) = damaged.base64 {
            return encoded(canonical, layers, needsLook).adding(repairs)
        }
        return .unreadable
    }

    /// The proof in canonical base64: itself, or what was encoded once more.
    private static func encoded(_ canonical: String, _ layers: Layers, _ needsLook: Bool) -> Outcome {
        let itself = Outcome.found(FoundProof(.receipt(canonical)))
        // Nearly every receipt begins like this, as octets with 0x30, and needs no further look.
        if !needsLook, beginsLikeSequence(canonical) { return itself }
        // Hexadecimal digits are letters of base64 too.
        if let first = canonical.utf8.first, first == UInt8(ascii: "3") || first == UInt8(ascii: "7"),
            let (digits, repairs) = DamagedText(canonical).hexadecimal
        {
            return Outcome.found(FoundProof(.receipt(digits))).adding(repairs)
        }
        guard let octets = Base64.decodeStandard(Array(canonical.utf8)[...]) else {
            return needsLook ? .unreadable : itself
        }
        if octets.first != ReceiptLook.sequence, layers.base64 > 0, let text = String(validating: octets, as: UTF8.self)
        {
            var layers = layers
            layers.base64 -= 1
            let inner = read(text, layers, needsLook: true)
            if inner != .unreadable { return inner.adding([.nestedBase64]) }
        }
        return needsLook && ReceiptLook(octets) < .beginning ? .unreadable : itself
    }

    /// Whether base64 begins with the octet 0x30.
    private static func beginsLikeSequence(_ base64: String) -> Bool {
        var bytes = base64.utf8.makeIterator()
        guard bytes.next() == UInt8(ascii: "M"), let second = bytes.next() else { return false }
        return (UInt8(ascii: "A")...UInt8(ascii: "P")).contains(second)
    }

    private static func look(atBase64 text: String) -> ReceiptLook {
        Base64.decodeStandard(Array(text.utf8)[...]).map { ReceiptLook($0) } ?? .other
    }

    // MARK: Signed data

    /// The transaction in a compact JWS: itself, or the one inside a notification. What the payload does not tell, a
    /// worker judges.
    private static func signed(_ jws: String, _ layers: Layers, _ needsLook: Bool) -> Outcome {
        guard jws.utf8.count <= ProofShape.signedTransactionBytesMax else { return .refused(.tooLong) }
        if needsLook, CompactJWS.unverifiedPayload(of: jws) == nil { return .unreadable }
        guard !SignedText.namesTransaction(jws), let payload = CompactJWS.unverifiedPayload(of: jws),
            let kind = SignedDataKind(looksLike: payload), kind != .transaction
        else { return .found(FoundProof(.signedTransaction(jws))) }
        guard kind == .notification, layers.notifications > 0,
            let inner = payload["data"]?.object?["signedTransactionInfo"]?.string, ProofShape.isCompactJWS(inner)
        else { return .refused(.otherKind(kind)) }
        var layers = layers
        layers.notifications -= 1
        return signed(inner, layers, needsLook).adding([.notification])
    }
}

/// A proof, and how it was found.
package struct FoundProof: Sendable, Equatable {
    package var proof: Proof
    /// In the order in which the layers were taken off.
    package var repairs: [FieldRepair.Kind] = []
    /// The ids that stood beside the proof in its wrapper. They are hints.
    package var transactionID: String?
    package var originalTransactionID: String?
    /// The member of the outermost object that led to the proof; nil: there was no object.
    package var member: String?

    init(_ proof: Proof) { self.proof = proof }
}

extension ProofReader.Outcome {
    /// The same outcome after these repairs, which came first.
    func adding(_ repairs: [FieldRepair.Kind]) -> Self {
        guard case .found(var found) = self else { return self }
        found.repairs = repairs + found.repairs
        return .found(found)
    }

    /// Names each repair once, and the field where it is not the one for this proof.
    fileprivate mutating func note(in field: ProofReader.Field) {
        guard case .found(var found) = self else { return }
        var repairs: [FieldRepair.Kind] = []
        for repair in found.repairs where !repairs.contains(repair) { repairs.append(repair) }
        switch (field, found.proof) {
        case (.signedTransaction, .receipt), (.receipt, .signedTransaction): repairs.append(.otherField)
        default: break
        }
        found.repairs = repairs
        self = .found(found)
    }
}

/// A look at a JWS without reading it whole: the door looks at every post.
private enum SignedText {
    private static let name = Array("\"transactionId\"".utf8)

    /// As many bytes of base64 as hold the first field of Apple's transactions, its `transactionId`.
    private static let beginningBytes = 96

    /// Whether the payload holds the name of the field that only transactions have.
    static func namesTransaction(_ jws: String) -> Bool {
        let bytes = Array(jws.utf8)
        guard let first = bytes.firstIndex(of: UInt8(ascii: ".")), let last = bytes.lastIndex(of: UInt8(ascii: ".")),
            first < last
        else { return false }
        let payload = bytes[(first + 1)..<last]
        return holdsName(payload.prefix(beginningBytes)) || holdsName(payload)
    }

    private static func holdsName(_ base64: ArraySlice<UInt8>) -> Bool {
        guard let payload = Base64.decodeURL(base64) else { return false }
        return payload.withUnsafeBytes { payload in
            guard let base = payload.baseAddress else { return false }
            var start = 0
            while start + name.count <= payload.count,
                let quote = memchr(base + start, Int32(name[0]), payload.count - start)
            {
                let place = UnsafeRawPointer(quote) - base
                guard place + name.count <= payload.count else { return false }
                if memcmp(base + place, name, name.count) == 0 { return true }
                start = place + 1
            }
            return false
        }
    }
}
