import Crypto
import Encoding
package import Foundation
package import Settings

/// Signs webhooks, and checks signatures, by the specification Standard Webhooks, version 1: HMAC-SHA256 over
/// `id.timestamp.body`.
package enum WebhookSignature {
    /// The names of the three headers.
    package enum Header {
        package static let id = "webhook-id"
        package static let timestamp = "webhook-timestamp"
        package static let signature = "webhook-signature"
    }

    /// How far a receiver lets the timestamp lie from its own clock, before and after: a webhook that somebody recorded is
    /// worth nothing after this time.
    package static let tolerance: Duration = .seconds(300)

    private static let version = "v1,"

    /// The value of `webhook-signature`: one signature for each secret, with spaces between.
    ///
    /// - Parameters:
    ///   - id: the event's id, the same for each try.
    ///   - timestamp: seconds since 1970 of this try.
    package static func sign(id: String, timestamp: Int, body: [UInt8], secrets: [WebhookSecret]) -> String {
        let content = signedContent(id, "\(timestamp)", body)
        return secrets.map { secret in
            let code = HMAC<SHA256>.authenticationCode(for: content, using: SymmetricKey(data: secret.bytes))
            return version + Data(code).base64EncodedString()
        }.joined(separator: " ")
    }

    /// Why a receiver does not trust a webhook.
    package enum Refusal: Error, Equatable {
        /// One of the three headers is missing, or the timestamp is no whole number of seconds.
        case header(String)
        /// The timestamp lies further from now than ``WebhookSignature/tolerance``.
        case timestamp
        /// None of the signatures is by one of the secrets.
        case signature
    }

    /// Checks a webhook as its receiver does. One valid signature by one of the secrets is enough; signatures of other
    /// versions are passed over. Takes the same time for each wrong signature of the right length.
    ///
    /// - Parameter header: the value of a header by its name in lower case; nil: the webhook has no such header.
    /// - Throws: why the webhook is not trusted.
    package static func verify(
        body: [UInt8], secrets: [WebhookSecret], now: Date, header: (String) -> String?
    ) throws(Refusal) {
        guard let id = header(Header.id), !id.isEmpty else { throw .header(Header.id) }
        // A sign or a space would give a second spelling of the same time.
        guard let timestamp = header(Header.timestamp), let seconds = Int(timestamp), "\(seconds)" == timestamp else {
            throw .header(Header.timestamp)
        }
        guard let signatures = header(Header.signature) else { throw .header(Header.signature) }
        guard abs(now.timeIntervalSince1970 - Double(seconds)) <= tolerance / .seconds(1) else { throw .timestamp }
        let content = signedContent(id, timestamp, body)
        for signature in signatures.split(separator: " ") where signature.hasPrefix(version) {
            guard let code = Base64.decodeStandard(ArraySlice(signature.utf8.dropFirst(version.utf8.count))) else {
                continue
            }
            for secret in secrets {
                let key = SymmetricKey(data: secret.bytes)
                if HMAC<SHA256>.isValidAuthenticationCode(code, authenticating: content, using: key) { return }
            }
        }
        throw .signature
    }

    private static func signedContent(_ id: String, _ timestamp: String, _ body: [UInt8]) -> [UInt8] {
        Array("\(id).\(timestamp).".utf8) + body
    }
}
