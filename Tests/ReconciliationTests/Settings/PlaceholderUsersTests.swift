import Foundation
import Purchases
import Testing

@testable import Settings

/// Goal: what names nobody is known in every spelling, and a real id never is taken for it (F9, F11). Method: tables of
/// ids; files with the settings.
@Suite struct PlaceholderUsersTests {
    @Test(
        "F9: nobody, whatever blanks, quotes and capitals stand around it",
        arguments: [
            "undefined", "null", "(null)", "nil", "[object Object]", "NaN", "None", "0", "-1", "", " ", "\t\n",
            "\u{a0}",
            "\u{feff}", "\u{200b}", "\u{3000}", " undefined ", "UNDEFINED", "[OBJECT OBJECT]", "\u{feff}null\r\n",
            "\"undefined\"", "' null '", "\"\"", "Optional(nil)", "<null>", "00000000-0000-0000-0000-000000000000",
            "Optional(\"u1\")", " optional(47) ", "%@", "{userId}", "{{user_id}}", "${USERID}", "{}", "[]", "<user_id>",
        ])
    func nobody(_ text: String) { #expect(PlaceholderUsers.standard.contains(text)) }

    @Test(
        "F9: somebody: no part of an id, no other digit, no letter that only looks alike",
        arguments: [
            "u1", "00", "01", "1", "-10", "10", "nilsson", "null1", "undefined2", "none of us", "nan-1", "(null",
            "nu\u{131}l", "\u{ff4e}\u{ff55}\u{ff4c}\u{ff4c}", "user undefined", "\"", "'",
            "00000000-0000-0000-0000-000000000001",
            "user_dW5kZWZpbmVk", "erased_0", "optional", "Optional(u1", "{3F2504E0-4F89-11D3-9A0C-0305E82C3301}",
            "{47}",
            "$user", "%40", "userId",
        ])
    func somebody(_ text: String) { #expect(!PlaceholderUsers.standard.contains(text)) }

    @Test("F9: the list is a setting; what is blank is nobody in any case; no id at all is none")
    func setting() throws {
        #expect(!PlaceholderUsers.standard.contains(nil))
        let given = try Self.configuration("users: {placeholders: [guest, \"0\", -7]}").placeholders
        #expect(["guest", " Guest", "0", "-7", "", "  "].allSatisfy { given.contains($0) })
        #expect(!given.contains("undefined") && !given.contains("guest1"))
        #expect(try Self.configuration("users: {placeholders: []}").placeholders == PlaceholderUsers([]))
        #expect(try Self.configuration("").placeholders == .standard)
    }

    @Test("F11: how an app derives its tokens is a setting of the app")
    func tokens() throws {
        func tokens(_ text: String) throws -> AccountToken.Derivation? {
            try Self.configuration("", app: text).apps["game"]?.accountTokens
        }
        #expect(try tokens("") == nil)
        #expect(try tokens("accountTokens: {derivedFrom: md5}") == .init(.md5))
        let namespace = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
        #expect(
            try tokens("accountTokens: {derivedFrom: uuid5, namespace: \(namespace)}")
                == .init(.uuid5, namespace: UUID(uuidString: namespace)))
        for wrong in [
            "{}", "{derivedFrom: md4}", "{derivedFrom: uuid5, namespace: dns}", "{derivedFrom: md5, salt: x}",
        ] {
            #expect(throws: ConfigurationError.self) { try tokens("accountTokens: \(wrong)") }
        }
    }

    private static func configuration(_ root: String, app: String = "") throws -> Configuration {
        try Configuration.parse(
            """
            apps:
              - id: game
                bundleId: com.example.game
                environments: [Sandbox]
                products: []
                \(app)
            \(root)
            """, directory: .temporaryDirectory)
    }
}
