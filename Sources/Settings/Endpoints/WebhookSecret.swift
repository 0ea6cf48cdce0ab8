import Encoding

/// A secret that signs webhooks, in the form of the specification Standard Webhooks: `whsec_` and the base64 of 24 to 64
/// bytes. A description never shows it.
package struct WebhookSecret: Sendable, Equatable, CustomStringConvertible, CustomReflectable {
    package static let prefix = "whsec_"
    package static let byteCounts = 24...64
    /// The secrets that an endpoint may have at a time: a new one beside the old one.
    package static let listMax = 2

    /// A text that holds no secrets for an endpoint.
    package struct Invalid: Error, Equatable {
        /// Follows on the name of the text: `must …`, `holds …`.
        package let problem: String
    }

    /// The key of the HMAC.
    package let bytes: [UInt8]

    /// Nil for a text without the prefix, for text that is not strict base64, and for fewer or more bytes.
    package init?(_ text: String) {
        guard text.hasPrefix(Self.prefix),
            let bytes = Base64.decodeStandard(ArraySlice(text.utf8.dropFirst(Self.prefix.utf8.count))),
            Self.byteCounts.contains(bytes.count)
        else { return nil }
        self.bytes = bytes
    }

    /// The secrets of an endpoint: one or two, with white space between.
    package static func list(_ text: String) throws(Invalid) -> [WebhookSecret] {
        let words = text.split(whereSeparator: \.isWhitespace)
        guard (1...listMax).contains(words.count) else {
            throw Invalid(problem: "must hold one secret, or two while they change")
        }
        var secrets: [WebhookSecret] = []
        for word in words {
            guard let secret = WebhookSecret(String(word)) else {
                throw Invalid(
                    problem: "must hold secrets of the form \(prefix) and the base64 of \(byteCounts.lowerBound) to "
                        + "\(byteCounts.upperBound) random bytes")
            }
            guard !secrets.contains(secret) else { throw Invalid(problem: "holds the same secret twice") }
            secrets.append(secret)
        }
        return secrets
    }

    package var description: String { "a secret of \(bytes.count) bytes" }
    package var customMirror: Mirror { Mirror(self, children: ["description": description]) }
}
