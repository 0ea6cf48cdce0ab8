import Foundation
import Purchases
import Testing

/// Goal: a token that a library writes where it has none names nobody (F10), and a token that a library derives from
/// the user's name is recognised as that user's (F11). Method: known UUIDs and their near neighbours; digests that
/// other programs print.
@Suite struct AccountTokenTests {
    @Test(
        "F10: one digit throughout is no token, with or without version and variant",
        arguments: [
            ("00000000-0000-0000-0000-000000000000", true), ("ffffffff-ffff-ffff-ffff-ffffffffffff", true),
            ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", true), ("11111111-1111-1111-1111-111111111111", true),
            ("00000000-0000-4000-8000-000000000000", true), ("ffffffff-ffff-4fff-bfff-ffffffffffff", true),
            ("00000000-0000-0000-0000-000000000001", false), ("10000000-0000-0000-0000-000000000000", false),
            ("00000000-0000-4010-8000-000000000000", false), ("ffffffff-ffff-ffff-ffff-fffffffffffe", false),
            ("01010101-0101-0101-0101-010101010101", false), ("7b0f6a9e-0c0d-4c35-9c1b-1b8d4c8f0a11", false),
        ])
    func none(_ text: String, isNone: Bool) throws {
        let token = try #require(UUID(uuidString: text))
        #expect(AccountToken.isNone(token) == isNone)
        let purchase = Transaction(
            id: "1", originalID: nil, productID: "coins", kind: .consumable, environment: Transaction.production,
            purchasedAt: .now, appAccountToken: token)
        #expect(purchase.appAccountToken == (isNone ? nil : token), "in whichever way Apple tells it")
        #expect((OrderID.named(text, of: "game") == token) != isNone, "no order has such an id")
    }

    @Test(
        "F11: as md5sum, sha1sum and uuidgen print it",
        arguments: [
            (AccountToken.Derivation(.md5), "hello", "5d41402a-bc4b-2a76-b971-9d911017c592"),
            (.init(.sha1), "hello", "aaf4c61d-dcc5-e8a2-dabe-de0f3b482cd9"),
            (.init(.uuid3), "hello", "5d41402a-bc4b-3a76-b971-9d911017c592"),
            (.init(.uuid5), "hello", "aaf4c61d-dcc5-58a2-9abe-de0f3b482cd9"),
            (.init(.uuid3, namespace: dns), "www.example.com", "5df41881-3aed-3515-88a7-2f4a814cf09e"),
            (.init(.uuid5, namespace: dns), "www.example.com", "2ed6657d-e927-568b-95e1-2665a8aea6a2"),
        ])
    func derived(_ derivation: AccountToken.Derivation, name: String, text: String) throws {
        let token = try #require(UUID(uuidString: text))
        #expect(derivation.token(of: name) == token)
        #expect(AccountToken.Derivation.known.contains { $0.token(of: name) == token })
        #expect(!AccountToken.Derivation.known.contains { $0.token(of: name + "x") == token })
        #expect(!AccountToken.Derivation.known.contains { $0.token(of: name.uppercased()) == token })
    }

    private static let dns = UUID(uuidString: "6ba7b810-9dad-11d1-80b4-00c04fd430c8")!
}
