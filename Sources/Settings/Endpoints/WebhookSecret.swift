import Encoding

/// A secret that signs webhooks, in the form of the specification Standard Webhooks: `whsec_` and the base64 of 24 to 64
/// bytes. A description never shows it.
package struct WebhookSecret: Sendable, Equatable, CustomStringConvertible, CustomReflectable {
    package static let prefix = "whsec_"
    package static let byteCounts = 24...64

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

    package var description: String { "a secret of \(bytes.count) bytes" }
    package var customMirror: Mirror { Mirror(self, children: ["description": description]) }
}
