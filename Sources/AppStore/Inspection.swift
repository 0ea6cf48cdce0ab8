import Encoding
package import Foundation

/// What `makegood inspect` says about one file: what it is, whether it is believed, why not, and what it says.
package struct Inspection: Sendable {
    package enum Kind: String, CaseIterable, Sendable {
        case transaction, renewalInfo, notification, appTransaction, receipt, transactionReceipt, unknown

        fileprivate var signedData: SignedDataKind? { SignedDataKind(rawValue: rawValue) }
    }

    package let kind: Kind
    /// nil if the data is Apple's, about this app.
    package let reason: VerificationFailure.Reason?
    /// What a person should know beside the reason.
    package private(set) var note: String?
    /// As decoded, believed or not.
    let payload: [String: JSON]?
    /// Decoded payloads of the signed data inside a notification, by field.
    let nested: [String: JSON]
    /// Of valid data that Apple did not sign: the names of the given roots, one of which did.
    private(set) var givenRoots: [String] = []

    package var isValid: Bool { reason == nil }

    /// Judges `data`: one JWS or one legacy receipt, white space around it ignored. Failing is a result, no error.
    ///
    /// - Parameters:
    ///   - kind: where the payload does not tell; otherwise found from its fields.
    ///   - date: judges certificates at this time instead of the signing date.
    package static func inspect(
        _ data: [UInt8], with verifier: SignedDataVerifier, kind: Kind? = nil, at date: Date? = nil
    ) async -> Inspection {
        var inspection = await judged(data, with: verifier, kind: kind, at: date)
        if inspection.isValid {
            // Data of a simulator is valid below a root that was given, and is not Apple's.
            if !verifier.givenRoots.isEmpty, let apples = try? verifier.believingAppleAlone(),
                await !judged(data, with: apples, kind: kind, at: date).isValid
            {
                inspection.givenRoots = verifier.givenRoots
            }
        } else if inspection.note == nil, [.malformed, .signature].contains(inspection.reason) {
            inspection.note = cut(String(decoding: trimmed(data), as: UTF8.self))
        }
        return inspection
    }

    /// Characters of a signature by ES256 in base64url: 64 bytes.
    private static let signatureCharacters = 86

    /// How a JWS was cut off; nil: it is whole, or no JWS.
    private static func cut(_ text: String) -> String? {
        // Base64url of `{"`, with which every header begins.
        guard text.hasPrefix("eyJ") else { return nil }
        let parts = text.split(separator: ".", omittingEmptySubsequences: false)
        if parts.count < 3 { return "a JWS that was cut off: \(parts.count) of its 3 parts are there" }
        let count = parts[2].utf8.count
        guard parts.count == 3, count < signatureCharacters else { return nil }
        return "a JWS that was cut off: \(count) of the \(signatureCharacters) characters of its signature are there"
    }

    private static func judged(
        _ data: [UInt8], with verifier: SignedDataVerifier, kind: Kind?, at date: Date?
    ) async -> Inspection {
        if kind == .receipt || kind == nil && isReceipt(data) {
            return await receipt(data, with: verifier, at: date)
        }
        guard let text = String(validating: trimmed(data), as: UTF8.self) else {
            return Inspection(kind: kind ?? .unknown, reason: .malformed)
        }
        if kind == .transactionReceipt || kind == nil && (try? TransactionReceipt(base64: text)) != nil {
            return transactionReceipt(text)
        }
        let payload = CompactJWS.unverifiedPayload(of: text)
        let found = kind ?? payload.flatMap { SignedDataKind(looksLike: $0) }.flatMap { Kind(rawValue: $0.rawValue) }
        guard let signedData = found?.signedData else {
            return Inspection(kind: .unknown, reason: .malformed, payload: payload)
        }
        return Inspection(
            kind: found ?? .unknown,
            reason: await failure(of: text, as: signedData, with: verifier, at: date)?.reason,
            payload: payload,
            nested: signedData == .notification ? payload.map(nestedPayloads) ?? [:] : [:])
    }

    /// `{"valid": bool, "kind": …, "reason": …, "payload": …}` with sorted keys: `reason` is null if valid, `root` is
    /// there if valid (`apple` or `given`), `payload` is there if it could be decoded, `nested` for notifications that
    /// hold signed data.
    package var json: [UInt8] {
        var members: [String: JSON] = [
            "valid": .bool(isValid),
            "kind": .string(kind.rawValue),
            "reason": reason.map { .string($0.rawValue) } ?? .null,
        ]
        if isValid { members["root"] = .string(givenRoots.isEmpty ? "apple" : "given") }
        if let note { members["note"] = .string(note) }
        if let payload { members["payload"] = .object(payload) }
        if !nested.isEmpty { members["nested"] = .object(nested) }
        return JSON.object(members).bytes
    }

    private init(
        kind: Kind, reason: VerificationFailure.Reason?, note: String? = nil,
        payload: [String: JSON]? = nil, nested: [String: JSON] = [:]
    ) {
        self.kind = kind
        self.reason = reason
        self.note = note
        self.payload = payload
        self.nested = nested
    }

    /// Judges the signatures and whose data it is; a field more or less is for the reader of the payload to see.
    private static func failure(
        of text: String, as kind: SignedDataKind, with verifier: SignedDataVerifier, at date: Date?
    ) async -> VerificationFailure? {
        do throws(VerificationFailure) {
            let payload = try await verifier.payload(of: text, as: kind, at: date)
            guard kind == .notification else { return nil }
            for data in signedData(in: payload) {
                _ = try await verifier.payload(of: data.jws, as: data.kind, at: date)
            }
            return nil
        } catch {
            return error
        }
    }

    /// The signed data inside a notification, in the order a reader meets it.
    private static func signedData(
        in notification: [String: JSON]
    ) -> [(field: String, jws: String, kind: SignedDataKind)] {
        let notification = AppleFields(notification, counts: false)
        guard let subject = SignedNotification.subject(of: notification) else { return [] }
        let fields: [(AppleField, SignedDataKind)] = [
            ("signedTransactionInfo", .transaction), ("signedRenewalInfo", .renewalInfo),
            ("signedAppTransactionInfo", .appTransaction),
        ]
        return fields.compactMap { field, kind in subject.string(field).map { (field.name, $0, kind) } }
    }

    private static func nestedPayloads(of notification: [String: JSON]) -> [String: JSON] {
        signedData(in: notification).reduce(into: [:]) { nested, data in
            nested[data.field] = CompactJWS.unverifiedPayload(of: data.jws).map { .object($0) }
        }
    }

    /// An app receipt, as base64 or as its bytes.
    private static func receipt(
        _ data: [UInt8], with verifier: SignedDataVerifier, at date: Date?
    ) async -> Inspection {
        var payload: [String: JSON]?
        do throws(ReceiptFailure) {
            // Base64 of a SEQUENCE begins with M, so the octet of a SEQUENCE itself, "0", begins no base64 of one.
            let isEncoded = data.first == BERReader.Element.sequence
            let octets = isEncoded ? data : try AppReceipt.octets(base64: Array(trimmed(data)))
            guard octets.count <= AppReceipt.bytesMax else { throw .tooLarge }
            payload = try AppReceipt(unverified: try SignedReceipt(octets).content).json
            _ = try await verifier.receipts.receipt(octets: octets, at: date)
            return Inspection(kind: .receipt, reason: nil, payload: payload)
        } catch {
            let note: String? = if case .notBelieved = error { nil } else { error.description }
            return Inspection(kind: .receipt, reason: error.reason, note: note, payload: payload)
        }
    }

    /// Never valid: it is signed in a way that only Apple checks.
    private static func transactionReceipt(_ text: String) -> Inspection {
        do throws(ReceiptFailure) {
            let receipt = try TransactionReceipt(base64: text)
            return Inspection(
                kind: .transactionReceipt, reason: .algorithm,
                note: "only Apple can verify a receipt of iOS 6 style: ask for transaction \(receipt.transactionId)",
                payload: receipt.json)
        } catch {
            return Inspection(kind: .transactionReceipt, reason: error.reason, note: error.description)
        }
    }

    private static func trimmed(_ data: [UInt8]) -> ArraySlice<UInt8> {
        let isSpace: (UInt8) -> Bool = { $0 == 0x20 || (0x09...0x0D).contains($0) }
        guard let first = data.firstIndex(where: { !isSpace($0) }), let last = data.lastIndex(where: { !isSpace($0) })
        else { return [] }
        return data[first...last]
    }

    /// PKCS#7 signedData, as DER or BER or as base64 of it: a SEQUENCE that begins with its object identifier.
    private static func isReceipt(_ data: [UInt8]) -> Bool {
        let signedData: [UInt8] = [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x02]
        func begins(_ bytes: some Collection<UInt8>) -> Bool {
            let head = Array(bytes.prefix(17))  // tag, at most five bytes of length, the identifier
            return head.first == 0x30 && head.indices.contains { head[$0...].starts(with: signedData) }
        }
        // Line breaks inside base64 are common in files; the first 24 characters hold all we need.
        let text = trimmed(data).prefix(26).filter { $0 != 0x0A && $0 != 0x0D }
        return begins(data) || Base64.decodeStandard(text.prefix(24)[...]).map { begins($0) } ?? false
    }
}
