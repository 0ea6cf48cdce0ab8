import Encoding
import Foundation
import Purchases
import Testing

@testable import MovingIn
@testable import Settings

/// Goal: an error in a line names the field but not its value, and a correct line is read as it was meant. Method: one
/// correct line of each kind, and the allowed and forbidden values of each field.
@Suite struct ImportRowTests {
    static let now = Date(timeIntervalSince1970: 1_800_000_000)

    static func context(
        keys: UserKeys? = nil, catalogue: Catalogue? = nil, now: Date = now, from origin: ImportOrigin? = nil,
        timeZone: TimeZone? = nil, takesSandbox: Bool = false, refunded: Set<String> = []
    ) throws -> ImportContext {
        let configuration = try Configuration.parse(
            """
            apps:
              - {id: game, bundleId: com.example.game, appAppleId: 1, grantFrom: 2027-01-01T00:00:00Z, products: [
                  {id: coins, type: consumable, goods: [{item: coin, amount: 60}]},
                  {id: pass, type: autoRenewable, goods: []}]}
            """, directory: FileManager.default.temporaryDirectory)
        let app = try #require(configuration.apps["game"])
        return ImportContext(
            app, catalogue: catalogue ?? app.policy.catalogue, keys: keys, now: now, origin: origin,
            timeZone: timeZone, takesSandbox: takesSandbox, refunded: refunded)
    }

    static func read<Row: ImportRow>(
        _: Row.Type, _ json: String, keys: UserKeys? = nil, timeZone: TimeZone? = nil
    ) throws -> Row {
        var lines = [Array(json.utf8)]
        var file = ImportFile(.jsonl) { lines.popLast() ?? [] }
        let record = try #require(try file.next(requiring: []))
        return try Row(ImportFields(values: try record.values.get(), app: try context(keys: keys, timeZone: timeZone)))
    }

    static let grant = [
        "transactionId": "\"2000001\"", "userId": "\"u1\"", "productId": "\"pass\"",
        "purchasedAt": "\"2026-11-01T10:00:00Z\"",
    ]

    static func line(_ fields: [String: String], _ changes: [String: String?] = [:]) -> String {
        let changed = fields.merging(changes.compactMapValues { $0 }) { $1 }.filter { changes[$0.key] != .some(nil) }
        return "{\(changed.map { "\"\($0)\": \($1)" }.joined(separator: ", "))}"
    }

    @Test("a purchase: its own chain and the production unless it says otherwise; numbers are ids too")
    func grants() throws {
        let plain = try Self.read(ImportedGrant.self, Self.line(Self.grant))
        #expect(plain.transactionID == "2000001" && plain.originalID == "2000001" && plain.user.stored == "u1")
        #expect(plain.productID == "pass" && plain.environment == "Production" && plain.isChain)
        #expect(plain.purchasedAt == Date(timeIntervalSince1970: 1_793_527_200))
        let full = try Self.read(
            ImportedGrant.self,
            Self.line(
                Self.grant,
                [
                    "transactionId": "2000001", "original_transaction_id": "1000", "userId": "77",
                    "productId": "\"coins\"",
                    "purchasedAt": "1793527200123", "environment": "\"Sandbox\"",
                ]))
        #expect(full.transactionID == "2000001" && full.originalID == "1000" && full.user.id == "77")
        #expect(full.environment == "Sandbox" && !full.isChain)
        #expect(full.purchasedAt == Date(timeIntervalSince1970: 1_793_527_200.123))
        // The kind of the product is not known: later purchases of its chain belong to the chain's owner all the same.
        #expect(try Self.read(ImportedGrant.self, Self.line(Self.grant, ["productId": "\"old\""])).isChain)
    }

    @Test(
        "what a field may not hold is said by its name, without its value",
        arguments: [
            ("transactionId", nil, "is missing"), ("transactionId", "\"\"", "is missing"),
            ("transactionId", "null", "is missing"),
            ("transactionId", "\"2.00000E+15\"", "must be an id of Apple's: at most 64 digits"),
            ("transactionId", "2.0E15", "must be an id of Apple's, not this number"),
            ("transactionId", "-1", "must be an id of Apple's, not this number"),
            ("transactionId", "\" 1\"", "must be an id of Apple's: at most 64 digits"),
            (
                "transactionId", "\"\(String(repeating: "1", count: 65))\"",
                "must be an id of Apple's: at most 64 digits"
            ),
            ("transactionId", "{}", "must be an id of Apple's"),
            ("originalTransactionId", "\"x\"", "must be an id of Apple's: at most 64 digits"),
            ("userId", nil, "is missing"), ("userId", "false", "must be a text"),
            ("userId", "[\"u\"]", "must be a text"),
            ("userId", "1.5", "must be a text, not this number"),
            ("userId", "\"\(String(repeating: "u", count: 257))\"", "is longer than 256 bytes"),
            ("userId", "\"u1 \"", "has white space at an end"),
            ("userId", "\"\\u00a0u1\"", "has white space at an end"),
            ("productId", nil, "is missing"), ("productId", "7e1", "must be a text, not this number"),
            ("purchasedAt", nil, "is missing"),
            ("purchasedAt", "\"yesterday\"", "must be a time such as 2026-03-01T00:00:00Z, or milliseconds since 1970"),
            (
                "purchasedAt", "\"2026-11-01T10:00:00\"",
                "has no time zone: write 2026-03-01T00:00:00Z, or give --time-zone UTC or another one"
            ),
            (
                "purchasedAt", "\"2026-11-01 10:00:00.5\"",
                "has no time zone: write 2026-03-01T00:00:00Z, or give --time-zone UTC or another one"
            ),
            (
                "purchasedAt", "\"2026-11-01\"",
                "must be a time such as 2026-03-01T00:00:00Z, or milliseconds since 1970"
            ),
            // Seconds.
            (
                "purchasedAt", "1793527200",
                "is before the App Store opened; numbers are milliseconds since 1970"
            ),
            ("purchasedAt", "\"2027-01-17T00:00:00Z\"", "lies ahead of the clock"),
            ("purchasedAt", "1.7e12", "must be a time, not this number"),
            ("environment", "\"production\"", "must be Production or Sandbox"),
        ] as [(String, String?, String)])
    func refusals(field: String, value: String?, problem: String) throws {
        #expect(throws: ImportFault(field: field, problem: problem)) {
            try Self.read(ImportedGrant.self, Self.line(Self.grant, [field: value]))
        }
    }

    @Test(
        "a placeholder is no user, in whatever case, with white space or as a number",
        arguments: [
            "\"undefined\"", "\"null\"", "\"(null)\"", "\"[object Object]\"", "\"NaN\"", "\"None\"", "\" \"",
            "\"\\u00a0\"",
            "\"0\"", "0", "\"-1\"", "-1", "\"NULL\"", "\" undefined \"",
        ])
    func placeholders(user: String) throws {
        let fault = ImportFault(field: "userId", problem: "is a placeholder that stands for no user")
        #expect(throws: fault) { try Self.read(ImportedGrant.self, Self.line(Self.grant, ["userId": user])) }
        #expect(throws: fault) {
            try Self.read(ImportedOwner.self, #"{"originalTransactionId": 1000, "userId": \#(user)}"#)
        }
        #expect(throws: fault) {
            try Self.read(ImportedToken.self, #"{"token": "\#(UUID())", "userId": \#(user)}"#)
        }
    }

    @Test(
        "what only looks like a placeholder is a user", arguments: ["nobody", "00", "10", "-10", "None of us", "nul"])
    func users(user: String) throws {
        let row = try Self.read(ImportedGrant.self, Self.line(Self.grant, ["userId": "\"\(user)\""]))
        #expect(row.user.id == user)
    }

    @Test(
        "a time without a zone is one of the file's zone; ISO 8601 and databases write zones in other ways",
        arguments: [
            ("2026-11-01T10:00:00+0000", nil, 1_793_527_200), ("2026-11-01 10:00:00.000000+0000", nil, 1_793_527_200),
            ("2026-11-01T12:30:00+0230", nil, 1_793_527_200), ("2026-11-01 07:00:00-03", nil, 1_793_527_200),
            ("2026-11-01 10:00:00 UTC", nil, 1_793_527_200), ("2026-11-01 10:00:00", "UTC", 1_793_527_200),
            // The file's zone is for times without one. Berlin left summer time on 25 October 2026 at 01:00 UTC.
            ("2026-11-01 10:00:00Z", "Europe/Berlin", 1_793_527_200),
            ("2026-11-01 11:00:00", "Europe/Berlin", 1_793_527_200),
            ("2026-07-01 12:00:00", "Europe/Berlin", 1_782_900_000),
            ("2026-10-25 01:30:00", "Europe/Berlin", 1_792_884_600),
            ("2026-10-25 03:30:00", "Europe/Berlin", 1_792_895_400),
        ] as [(String, String?, Double)])
    func zones(text: String, zone: String?, seconds: Double) throws {
        let row = try Self.read(
            ImportedGrant.self, Self.line(Self.grant, ["purchasedAt": "\"\(text)\""]),
            timeZone: try zone.map { try #require(TimeZone(identifier: $0)) })
        #expect(row.purchasedAt == Date(timeIntervalSince1970: seconds))
    }

    @Test("owners, tokens and orders")
    func others() throws {
        let owner = try Self.read(ImportedOwner.self, #"{"originalTransactionId": 1000, "userId": "u"}"#)
        #expect(owner.originalID == "1000" && owner.since == nil && owner.environment == "Production")
        #expect(throws: ImportFault(field: "since", problem: "lies ahead of the clock")) {
            try Self.read(
                ImportedOwner.self,
                #"{"originalTransactionId": 1000, "userId": "u", "since": "2030-01-01T00:00:00Z"}"#)
        }
        let id = UUID()
        #expect(
            try Self.read(ImportedToken.self, #"{"token": "\#(id.uuidString.lowercased())", "userId": "u"}"#).token
                == id)
        #expect(throws: ImportFault(field: "token", problem: "must be a UUID")) {
            try Self.read(ImportedToken.self, #"{"token": "7", "userId": "u"}"#)
        }
        let order = ["orderId": "\"\(id)\"", "userId": "\"u\"", "productId": "\"coins\"", "placedAt": "1793527200000"]
        let plain = try Self.read(ImportedOrder.self, Self.line(order))
        #expect(plain.id == id && plain.item == "coins" && plain.quantity == 1 && plain.target == "{}")
        #expect(plain.offer?.goods == [.init(item: "coin", amount: 60)])
        #expect(plain.payBy == plain.placedAt.addingTimeInterval(48 * 3600))
        let full = try Self.read(
            ImportedOrder.self,
            Self.line(
                order,
                [
                    "orderId": "\"A-17\"", "productId": "\"gone\"", "item": "\"chest\"", "quantity": "3", "server": "7",
                    "role": "\"r\"", "country": "\"CN\"", "payBy": "\"2027-06-01T00:00:00Z\"",
                    "promotion": "\"spring\"",
                    "priceMilliunits": "6000", "currency": "\"CNY\"",
                ]))
        #expect(full.offer == nil && full.item == "chest" && full.quantity == 3 && full.promotion == "spring")
        #expect(full.target == #"{"country":"CN","role":"r","server":"7"}"#)
        #expect(full.price == .init(milliunits: 6000, currency: "CNY"))
        #expect(full.id == OrderID.named("A-17", of: "game") && full.id != OrderID.named("A-18", of: "game"))
        #expect(full.id != OrderID.named("A-17", of: "other"))
        for (field, value, problem) in [
            ("item", "\"chest\"", "is not sold under this product"),
            ("quantity", "0", "must be a whole number from 1 to 1000"),
            ("quantity", "\"two\"", "must be a whole number from 1 to 1000"),
            ("payBy", "1793527100000", "is before placedAt"), ("orderId", nil, "is missing"),
            ("promotion", "\"spring\"", "was not on for this item when it was placed"),
            ("priceMilliunits", "-1", "must be a whole number, not this number"),
            ("priceMilliunits", "1000000000000001", "must be a whole number from 0 to 1000000000000000"),
        ] as [(String, String?, String)] {
            #expect(throws: ImportFault(field: field, problem: problem)) {
                try Self.read(ImportedOrder.self, Self.line(order, [field: value]))
            }
        }
    }

    @Test("S1-12: where users are protected a row holds the key, also where the id stands in its target")
    func protected() throws {
        let keys = try #require(UserKeys(file: String(repeating: "0123456789abcdef", count: 4)))
        let order = try Self.read(
            ImportedOrder.self,
            #"{"orderId": "\#(UUID())", "userId": "u1", "productId": "coins", "placedAt": 1793527200000, "role": "u1"}"#,
            keys: keys)
        let key = keys.key(of: "u1", app: "game")
        #expect(order.user.stored == key && order.user.id == "u1")
        #expect(order.target == #"{"role":"\#(key)"}"#)
    }

    @Test(
        "RFC 3339: times with a zone, and nothing that only looks like one",
        arguments: [
            ("2026-11-01T10:00:00Z", 1_793_527_200), ("2026-11-01t10:00:00z", 1_793_527_200),
            ("2026-11-01 10:00:00.5Z", 1_793_527_200.5),
            ("2026-11-01T12:30:00.123456789+02:30", 1_793_527_200.123456789),
            ("2026-10-31T23:00:00-11:00", 1_793_527_200), ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("1969-12-31T23:59:59Z", -1), ("2016-12-31T23:59:60Z", 1_483_228_800), ("2100-02-29T00:00:00Z", nil),
            ("2026-02-30T00:00:00Z", nil), ("2026-13-01T00:00:00Z", nil), ("2026-00-01T00:00:00Z", nil),
            ("2026-11-01T24:00:00Z", nil), ("2026-11-01T10:60:00Z", nil), ("2026-11-01T10:00:61Z", nil),
            ("2026-11-01T10:00:00", nil), ("2026-11-01", nil), ("2026-11-01T10:00:00.Z", nil),
            ("2026-11-01T10:00:00.1234567890Z", nil), ("2026-11-01T10:00:00+0230", nil),
            ("2026-11-01T10:00:00+25:00", nil),
            ("2026-11-01T10:00:00Zx", nil), ("+026-11-01T10:00:00Z", nil), ("2026-11-01T10:00:00+01:00x", nil),
            ("", nil),
        ] as [(String, Double?)])
    func times(text: String, seconds: Double?) {
        #expect(Date(rfc3339: text) == seconds.map(Date.init(timeIntervalSince1970:)))
        guard let seconds, seconds == seconds.rounded() else { return }
        #expect(Date(rfc3339: Date(timeIntervalSince1970: seconds).rfc3339)?.timeIntervalSince1970 == seconds)
    }
}
