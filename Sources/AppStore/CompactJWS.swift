package import Encoding

/// A JSON Web Signature in compact form, taken apart; nothing in it is believed yet.
///
/// Source: RFC 7515 section 3.1; AppleFacts 1.1.
package struct CompactJWS: Sendable {
    /// The header as it came, base64url: the key of the chain cache.
    let rawHeader: String
    package let payload: [String: JSON]
    let signature: [UInt8]
    /// The ASCII bytes the signature is over: `header.payload`.
    let signedBytes: ArraySlice<UInt8>

    /// Bytes of one JWS that holds no other.
    package static let sizeLimit = 64 * 1024
    /// Bytes of a notification. A notification holds two more JWS inside: some 20 KiB with Apple's chain of today.
    package static let notificationBytesMax = 256 * 1024
    /// Bytes of R and S of P-256, raw (AppleFacts 1.1).
    static let signatureLength = 64

    /// - Throws: `malformed`.
    package init(_ text: String, bytesMax: Int = sizeLimit) throws(VerificationFailure) {
        guard text.utf8.count <= bytesMax else { throw VerificationFailure(.malformed) }
        let bytes = Array(text.utf8)
        guard let parts = Self.split(bytes),
            let payload = Self.object(parts.payload),
            let signature = Base64.decodeURL(parts.signature)
        else { throw VerificationFailure(.malformed) }
        self.rawHeader = String(decoding: parts.header, as: UTF8.self)
        self.payload = payload
        self.signature = signature
        self.signedBytes = bytes[..<parts.payload.endIndex]
    }

    /// The payload of what may be a broken JWS, for people to look at and for look-ups: nothing in it is believed.
    package static func unverifiedPayload(of text: String) -> [String: JSON]? {
        guard text.utf8.count <= sizeLimit, let parts = split(Array(text.utf8)) else { return nil }
        return object(parts.payload)
    }

    /// The certificates of the header as they came: exactly three, standard base64 of DER.
    ///
    /// Run on a cache miss only; a header seen before has passed.
    func certificates() throws(VerificationFailure) -> [String] {
        let raw = Array(rawHeader.utf8)
        // `crit` names extensions we would have to understand (RFC 7515 section 4.1.11): there are none.
        guard let header = Self.object(raw[...]), header["crit"] == nil else { throw VerificationFailure(.malformed) }
        guard header["alg"] == .string("ES256") else { throw VerificationFailure(.algorithm) }
        guard let chain = header["x5c"] else { throw VerificationFailure(.chainLength) }
        guard let elements = chain.array else { throw VerificationFailure(.malformed) }
        guard elements.count == 3 else { throw VerificationFailure(.chainLength) }
        let certificates = elements.compactMap(\.string)
        guard certificates.count == 3 else { throw VerificationFailure(.malformed) }
        return certificates
    }

    private typealias Part = ArraySlice<UInt8>

    private static func split(_ bytes: [UInt8]) -> (header: Part, payload: Part, signature: Part)? {
        let dot = UInt8(ascii: ".")
        guard let first = bytes.firstIndex(of: dot),
            let second = bytes[(first + 1)...].firstIndex(of: dot),
            !bytes[(second + 1)...].contains(dot)
        else { return nil }
        return (bytes[..<first], bytes[(first + 1)..<second], bytes[(second + 1)...])
    }

    private static func object(_ part: Part) -> [String: JSON]? {
        guard let bytes = Base64.decodeURL(part) else { return nil }
        return try? JSON(parsing: bytes).object
    }
}
