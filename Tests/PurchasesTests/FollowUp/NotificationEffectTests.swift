import Foundation
import Purchases
import Testing

/// Goal: the effect of each type of notification stands once, in code and documentation alike, and no type that Apple
/// documents is missing. Method: the page is compared with the table line by line; the types are listed here once more,
/// as Apple documents them.
@Suite struct NotificationEffectTests {
    /// AppleFacts, section 4.3. An empty text: without a subtype.
    private static let version2: [String: [String]] = [
        "SUBSCRIBED": ["INITIAL_BUY", "RESUBSCRIBE"], "DID_RENEW": ["", "BILLING_RECOVERY"],
        "DID_CHANGE_RENEWAL_PREF": ["UPGRADE", "DOWNGRADE", "", "INCREASE_QUANTITY", "DECREASE_QUANTITY"],
        "DID_CHANGE_RENEWAL_STATUS": ["AUTO_RENEW_ENABLED", "AUTO_RENEW_DISABLED"],
        "OFFER_REDEEMED": ["", "UPGRADE", "DOWNGRADE", "INITIAL_BUY", "RESUBSCRIBE"],
        "DID_FAIL_TO_RENEW": ["GRACE_PERIOD", ""], "GRACE_PERIOD_EXPIRED": [""],
        "EXPIRED": ["VOLUNTARY", "BILLING_RETRY", "PRICE_INCREASE", "PRODUCT_NOT_FOR_SALE", ""],
        "PRICE_INCREASE": ["PENDING", "ACCEPTED"], "REFUND": ["", "SEATS"], "REFUND_REVERSED": [""],
        "REFUND_DECLINED": [""], "REVOKE": [""], "CONSUMPTION_REQUEST": [""], "ONE_TIME_CHARGE": [""],
        "RENEWAL_EXTENDED": [""], "RENEWAL_EXTENSION": ["SUMMARY", "FAILURE"],
        "EXTERNAL_PURCHASE_TOKEN": ["UNREPORTED", "CREATED", "ACTIVE_TOKEN_REMINDER"], "RESCIND_CONSENT": [""],
        "UNCLAIM_SEATS": [""], "METADATA_UPDATE": [""], "MIGRATION": [""], "MIGRATE": [""], "PRICE_CHANGE": [""],
        "TEST": [""],
    ]
    /// AppleFacts, section 5.3: each type of version 1 with the type and subtype that mean the same (S3-48a, S3-48b,
    /// S3-48c, S3-48d, S3-48e, S3-48f, S3-48g, S3-48h, S3-48i).
    private static let version1: [String: (type: String, subtypes: [String?])] = [
        "INITIAL_BUY": ("SUBSCRIBED", ["INITIAL_BUY"]), "INTERACTIVE_RENEWAL": ("SUBSCRIBED", ["RESUBSCRIBE"]),
        "DID_RENEW": ("DID_RENEW", [nil]), "DID_RECOVER": ("DID_RENEW", ["BILLING_RECOVERY"]),
        "RENEWAL": ("DID_RENEW", ["BILLING_RECOVERY"]), "DID_FAIL_TO_RENEW": ("DID_FAIL_TO_RENEW", [nil]),
        "DID_CHANGE_RENEWAL_PREF": ("DID_CHANGE_RENEWAL_PREF", ["DOWNGRADE"]),
        "DID_CHANGE_RENEWAL_STATUS": (
            "DID_CHANGE_RENEWAL_STATUS", ["AUTO_RENEW_ENABLED", "AUTO_RENEW_DISABLED"]
        ),
        "PRICE_INCREASE_CONSENT": ("PRICE_INCREASE", ["PENDING", "ACCEPTED"]), "CANCEL": ("REFUND", [nil]),
        "REFUND": ("REFUND", [nil]), "REVOKE": ("REVOKE", [nil]), "CONSUMPTION_REQUEST": ("CONSUMPTION_REQUEST", []),
    ]

    @Test("the page Notifications has exactly the rows of the table, in their order")
    func page() throws {
        let checkout = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
            .deletingLastPathComponent().deletingLastPathComponent()
        let page = try String(
            contentsOf: checkout.appending(path: "Sources/Purchases/Purchases.docc/Notifications.md"), encoding: .utf8)
        let rows = page.split(separator: "\n").filter { $0.hasPrefix("| `") }.map(String.init)
        let table = NotificationEffect.table.map(\.line)
        #expect(rows.count == table.count)
        for (row, line) in zip(rows, table) { #expect(row == line) }
    }

    @Test("every type and subtype of version 2 has one row, and nothing else has any")
    func types() {
        var count = 0
        for (type, subtypes) in Self.version2 {
            for subtype in subtypes {
                let name = subtype.isEmpty ? nil : subtype
                let rows = NotificationEffect.table.filter { $0.type == type && $0.subtypes.contains(name) }
                #expect(rows.count == 1, "\(type) \(subtype)")
                #expect(NotificationEffect.of(type: type, subtype: name, version: 2) == rows.first)
                count += 1
            }
            #expect(NotificationEffect.of(type: type, subtype: "NEW", version: 2) == nil)
            #expect(NotificationEffect.of(type: type.lowercased(), subtype: nil, version: 2) == nil)
        }
        #expect(NotificationEffect.table.reduce(0) { $0 + $1.subtypes.count } == count)
        #expect(NotificationEffect.of(type: "NEW", subtype: nil, version: 2) == nil)
        #expect(NotificationEffect.of(type: "SUBSCRIBED", subtype: nil, version: 2) == nil)
    }

    @Test("S3-48, S3-51: every type of version 1 means what Apple's page says")
    func typesOfVersion1() {
        for (type, meaning) in Self.version1 {
            let row = NotificationEffect.of(type: type, subtype: nil, version: 1)
            #expect(row?.type == meaning.type && row?.subtypes == meaning.subtypes, "\(type)")
        }
        #expect(NotificationEffect.table.reduce(0) { $0 + $1.typesOfVersion1.count } == Self.version1.count)
        #expect(NotificationEffect.of(type: "SUBSCRIBED", subtype: nil, version: 1) == nil)
    }

    @Test("few types do more than to bring facts, and none of version 1 does")
    func kinds() {
        func types(_ kind: NotificationEffect.Kind) -> [String] {
            NotificationEffect.table.filter { $0.kind == kind }.map(\.type)
        }
        #expect(types(.refundRequest) == ["CONSUMPTION_REQUEST"])
        #expect(types(.test) == ["TEST"])
        #expect(types(.record) == ["RENEWAL_EXTENSION", "EXTERNAL_PURCHASE_TOKEN", "RESCIND_CONSENT", "UNCLAIM_SEATS"])
        for type in Self.version1.keys {
            #expect(NotificationEffect.of(type: type, subtype: nil, version: 1)?.kind == .hear, "\(type)")
        }
    }
}
