package import Encoding

/// A repair of one field of a post. The answer names the repair. The repaired post is the same submission as the clean
/// one: its receipt has the same id.
package struct FieldRepair: Sendable, Equatable {
    /// The kinds of repairs. The raw value is the word in answers; WhatIsAccepted.md explains each.
    package enum Kind: String, Sendable, CaseIterable {
        /// A JSON number was sent where an id is a text.
        case number
        /// The proof was found in a field that is meant for another proof.
        case otherField = "other_field"
        case whiteSpace = "white_space"
        case quotes
        /// A word before the proof, such as `Bearer`.
        case prefix
        case dataURL = "data_url"
        case percentEncoding = "percent_encoding"
        /// Escapes of JSON were sent as characters.
        case backslashes
        /// References of HTML, such as `&#43;`, were sent as characters.
        case characterReferences = "character_references"
        case spacesForPlus = "spaces_for_plus"
        case mixedAlphabet = "mixed_alphabet"
        case padding
        /// The proof was encoded in base64 once more.
        case nestedBase64 = "nested_base64"
        /// The octets were written in hexadecimal digits.
        case hexadecimal
        /// The proof was found in a purchase object of a client library.
        case wrapper
        /// The signed transaction was found in a notification of Apple's.
        case notification
    }

    package let field: String
    package let kind: Kind

    package init(_ field: String, _ kind: Kind) {
        self.field = field
        self.kind = kind
    }

    package var json: JSONValue {
        .object([.init("field", .string(field)), .init("repair", .string(kind.rawValue))])
    }
}
