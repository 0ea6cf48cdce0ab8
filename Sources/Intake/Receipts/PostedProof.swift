import AppStore
import Encoding
import Purchases
import Service

/// The proof of a post, read from `signedTransaction` and `receipt` together, or else from the other members of the
/// body.
///
/// Of two fields one may be empty, senseless or a copy of the other. Two different proofs are refused: to take one of
/// them would tell the app that the purchases of the other are safe.
struct PostedProof {
    private(set) var proof: Proof?
    private(set) var repairs: [FieldRepair] = []
    private(set) var transactionID: String?
    private(set) var originalTransactionID: String?
    /// The members that were read here and say nothing else.
    private(set) var taken: Set<String> = []
    /// The fields that hold no proof, beside one that does or beside an id.
    private(set) var disregarded: [String] = []

    private enum Reading {
        /// Nothing was sent.
        case absent
        /// Something that means nothing was sent; the problem, if the post has nothing else.
        case blank(Problem)
        case found(FoundProof)
        case unusable(Problem)
    }

    private static let fields = [ProofReader.Field.signedTransaction, .receipt]
    private static let nothing: Set<String> = [
        "null", "nil", "none", "undefined", "(null)", "<null>", "nan", "false", "[object object]",
    ]

    /// - Parameter repeated: the names that stand twice in the body; they are not read.
    /// - Throws: 400 for a proof that nobody can read; 422 for two proofs, or for what is no purchase at Apple.
    init(_ members: [JSONValue.Member], repeated: Set<String>) throws(Problem) {
        var (problem, blank): (Problem?, Problem?)
        for field in Self.fields where !repeated.contains(field.rawValue) {
            guard let member = members.first(where: { $0.key.isSameText(as: field.rawValue) }) else { continue }
            switch Self.read(member.value, field) {
            case .absent: taken.insert(field.rawValue)
            case .blank(let why):
                disregarded.append(field.rawValue)
                blank = blank ?? why
            case .found(let found):
                if let proof, proof != found.proof { throw .twoProofs }
                taken.insert(field.rawValue)
                take(found, as: field.rawValue)
            case .unusable(let why):
                disregarded.append(field.rawValue)
                problem = problem ?? why
            }
        }
        // A proof that stands twice is refused anyway.
        guard proof == nil, !Self.fields.contains(where: { repeated.contains($0.rawValue) }) else { return }
        let hasID = members.contains { member in
            ["transactionId", "originalTransactionId"].contains { member.key.isSameText(as: $0) }
                && member.value != .null && member.value != .string("")
        }
        switch ProofReader.read(body: members) {
        case .found(let found):
            guard let member = found.member else { break }
            taken.insert(member)
            disregarded.removeAll { $0.isSameText(as: member) }
            take(found, as: member)
            return
        // Beside an id these members say nothing, and are stored as unknown ones.
        case .refused(let refusal): if !hasID { problem = problem ?? .refused(refusal, field: nil) }
        case .unreadable: break
        }
        if let problem {
            guard !hasID, [.notJWS, .notBase64, .wrongType].contains(problem.code),
                let ids = Self.fields.lazy.compactMap({ Self.ids(in: members, $0) }).first
            else { throw problem }
            (transactionID, originalTransactionID) = ids
            return
        }
        if let blank, !hasID { throw blank }
    }

    private static func ids(
        in members: [JSONValue.Member], _ field: ProofReader.Field
    ) -> (transactionID: String?, originalTransactionID: String?)? {
        members.first { $0.key.isSameText(as: field.rawValue) }.flatMap { ProofReader.ids(in: $0.value) }
    }

    private mutating func take(_ found: FoundProof, as field: String) {
        proof = found.proof
        transactionID = transactionID ?? found.transactionID
        originalTransactionID = originalTransactionID ?? found.originalTransactionID
        for kind in found.repairs {
            let repair = FieldRepair(field, kind)
            if !repairs.contains(repair) { repairs.append(repair) }
        }
    }

    private static func read(_ value: JSONValue, _ field: ProofReader.Field) -> Reading {
        switch value {
        case .null: .absent
        case .string(let text) where text.isEmpty: .absent
        case .string(let text) where isBlank(text): .blank(.misspelt(field))
        case .string(let text): reading(ProofReader.read(text, in: field), field, .misspelt(field))
        case .object(let members) where members.isEmpty: .blank(.noText(field))
        case .array(let elements) where elements.isEmpty: .blank(.noText(field))
        case .object, .array: reading(ProofReader.read(value, in: field), field, .noText(field))
        case .bool(false): .blank(.noText(field))
        case .bool, .number: .unusable(.noText(field))
        }
    }

    private static func reading(
        _ outcome: ProofReader.Outcome, _ field: ProofReader.Field, _ unreadable: @autoclosure () -> Problem
    ) -> Reading {
        switch outcome {
        case .found(let found): .found(found)
        case .refused(let refusal): .unusable(.refused(refusal, field: field.rawValue))
        case .unreadable: .unusable(unreadable())
        }
    }

    /// White space, or a word by which a client's language writes that there is nothing.
    private static func isBlank(_ text: String) -> Bool {
        // The longest of the words, with some white space around it.
        guard text.utf8.count <= 64 else { return text.utf8.allSatisfy { $0 <= 0x20 } }
        let word = text.unicodeScalars.filter { !$0.properties.isWhitespace && $0 != "\u{FEFF}" && $0 != "\u{200B}" }
        return word.isEmpty || nothing.contains(text.lowercased().trimmed)
    }
}

extension String {
    /// The text without white space at both ends.
    fileprivate var trimmed: String {
        String(drop(while: \.isWhitespace).reversed().drop(while: \.isWhitespace).reversed())
    }
}

extension Problem {
    fileprivate static let twoProofs = Problem.incomplete(
        .twoProofs, "signedTransaction and receipt hold two proofs: send one of them, or both as entries of one batch")

    fileprivate static func misspelt(_ field: ProofReader.Field) -> Problem {
        switch field {
        case .signedTransaction:
            .malformed(.notJWS, "must be three parts of unpadded base64url", field: field.rawValue)
        case .receipt: .malformed(.notBase64, "must be base64 of an app receipt", field: field.rawValue)
        }
    }

    fileprivate static func noText(_ field: ProofReader.Field) -> Problem {
        .wrongType(field.rawValue, "a string, or an object that holds the proof")
    }

    fileprivate static func refused(_ refusal: ProofReader.Refusal, field: String?) -> Problem {
        switch refusal {
        case .otherStore:
            .incomplete(.otherStore, "is the purchase of another store: send purchases of Apple's alone", field: field)
        case .otherKind(let kind):
            .incomplete(
                .otherSignedData,
                "is \(kind.words): send StoreKit's signed transaction (jwsRepresentation) as signedTransaction",
                field: field)
        case .tooLong:
            .malformed(
                .tooLong, "holds a signed transaction longer than \(ProofShape.signedTransactionBytesMax) bytes",
                field: field)
        case .several:
            .incomplete(.twoProofs, "holds several purchases: send each as an entry of a batch", field: field)
        }
    }
}

extension SignedDataKind {
    fileprivate var words: String {
        switch self {
        case .transaction: "a transaction"
        case .renewalInfo: "renewal info, which holds no purchase"
        case .notification: "a notification without a transaction"
        case .appTransaction: "an app transaction, which holds no purchase"
        }
    }
}
