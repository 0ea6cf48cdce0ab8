/// The texts that an app sends in the place of its user once it has lost its user (F9, `users.placeholders`). Nobody
/// who is called so owns anything.
package struct PlaceholderUsers: Sendable, Equatable {
    /// What languages, libraries and templates write for nothing.
    package static let standard = PlaceholderUsers([
        "undefined", "null", "(null)", "<null>", "nil", "(nil)", "<nil>", "Optional(nil)", "none", "(none)", "NaN", "0",
        "-1", "[object Object]", "[object Undefined]", "[object Null]", "[object Promise]",
        "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
        // Templates that nobody filled in.
        "%@", "%s", "%d", "%ld", "%lld", "{}", "[]", "{0}", "{userId}", "{user_id}", "{{userId}}", "{{user_id}}",
        "${userId}", "${user_id}", "#{user_id}", "<userId>", "<user_id>", "%userId%",
    ])
    /// How Swift prints an optional, folded: `Optional("u1")`. The app has a user, and did not say which in its own
    /// words.
    private static let printedOptional = Array("optional(".utf8)

    /// As ``folded(_:)`` gives them.
    private let names: Set<[UInt8]>

    package init(_ names: [String]) { self.names = Set(names.map(Self.folded)) }

    /// Whether the text names nobody: it is blank, or one of the list. Blanks, what nobody sees, and a pair of
    /// quotation marks around the text do not count, nor does the case of ASCII letters. Nil is no placeholder.
    ///
    /// A user's id is asked before it is protected: no key of a user is a placeholder.
    package func contains(_ userID: String?) -> Bool {
        guard let userID else { return false }
        let folded = Self.folded(userID)
        return folded.isEmpty || names.contains(folded)
            || folded.starts(with: Self.printedOptional) && folded.last == UInt8(ascii: ")") && printsOptionals
    }

    /// Whether the list has the printed nil of Swift: then every printed optional names nobody.
    private var printsOptionals: Bool { names.contains(Self.printedOptional + Array("nil)".utf8)) }

    private static func folded(_ text: String) -> [UInt8] {
        var scalars = trimmed(text.unicodeScalars[...])
        if scalars.count > 1, let first = scalars.first, first == scalars.last, first == "\"" || first == "'" {
            scalars = trimmed(scalars.dropFirst().dropLast())
        }
        return String(scalars).utf8.map { (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains($0) ? $0 | 0x20 : $0 }
    }

    private static func trimmed(_ scalars: Substring.UnicodeScalarView) -> Substring.UnicodeScalarView {
        guard let start = scalars.firstIndex(where: { !isBlank($0) }),
            let end = scalars.lastIndex(where: { !isBlank($0) })
        else { return scalars[scalars.endIndex...] }
        return scalars[start...end]
    }

    private static func isBlank(_ scalar: Unicode.Scalar) -> Bool {
        if scalar.properties.isWhitespace { return true }
        switch scalar.properties.generalCategory {
        case .control, .format: return true
        default: return false
        }
    }
}
