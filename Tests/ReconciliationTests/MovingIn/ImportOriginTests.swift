import Encoding
import Foundation
import Purchases
import Testing

@testable import MovingIn

/// Goal: the exports of RevenueCat and Adapty are read as they are, each line once: as the purchase that it is, as a
/// line that Makegood does not need, or as an error with the column's own name. Method: files with the columns that the
/// systems document, one line for each case.
@Suite struct ImportOriginTests {
    /// The default columns of RevenueCat's Transactions feed, in their order.
    static let revenuecat = [
        "rc_original_app_user_id", "rc_last_seen_app_user_id_alias", "country", "product_identifier", "start_time",
        "end_time", "store", "is_auto_renewable", "is_trial_period", "is_in_intro_offer_period", "is_sandbox",
        "price_in_usd", "takehome_percentage", "store_transaction_id", "original_store_transaction_id", "refunded_at",
        "unsubscribe_detected_at", "billing_issues_detected_at", "purchased_currency", "price_in_purchased_currency",
        "entitlement_identifiers", "renewal_number", "is_trial_conversion", "presented_offering", "ownership_type",
        "reserved_subscriber_attributes", "custom_subscriber_attributes", "platform",
    ]
    static let bought = [
        "rc_original_app_user_id": "$RCAnonymousID:87c6049c58069238dce29853916d624c",
        "rc_last_seen_app_user_id_alias": "u1", "country": "GB", "product_identifier": "pass",
        "start_time": "2026-10-01 08:27:06", "end_time": "2026-11-01 08:27:06", "store": "app_store",
        "is_auto_renewable": "true", "is_trial_period": "false", "is_sandbox": "false", "price_in_usd": "9.99",
        "store_transaction_id": "2000000000000002", "original_store_transaction_id": "2000000000000001",
        "entitlement_identifiers": #"["pro", "full"]"#, "renewal_number": "2", "ownership_type": "PURCHASED",
        "reserved_subscriber_attributes": #"{"$ip": {"value": "203.0.113.1"}}"#, "platform": "iOS",
    ]

    /// A file of RevenueCat's: each line is the purchase above, changed.
    static func file(_ lines: [[String: String]], separator: String = ",", mark: String = "") -> String {
        func field(_ text: String) -> String {
            guard text.contains(where: { "\",;\t".contains($0) }) else { return text }
            return "\"\(text.replacing("\"", with: "\"\""))\""
        }
        let rows = lines.map { changes in
            let line = bought.merging(changes) { $1 }
            return revenuecat.map { field(line[$0] ?? "") }
        }
        return mark + ([revenuecat] + rows).map { $0.joined(separator: separator) + "\r\n" }.joined()
    }

    /// One text for each line: `2 skip reason`, `2! column problem`, or the purchase.
    static func read(
        _ content: String, from origin: ImportOrigin, _ format: ImportFile.Format = .csv, takesSandbox: Bool = false,
        refunded: Set<String> = [], timeZone: TimeZone? = nil
    ) throws -> [String] {
        var pieces = [Array(content.utf8)]
        var file = ImportFile(format, from: origin) { pieces.popLast() ?? [] }
        let context = try ImportRowTests.context(
            from: origin, timeZone: timeZone, takesSandbox: takesSandbox, refunded: refunded)
        var seen: [String] = []
        while let record = try file.next(requiring: ImportedGrant.required) {
            do {
                let fields = ImportFields(values: try record.values.get(), app: context)
                if let skip = try fields.skip() {
                    seen.append("\(record.line) skip \(skip.rawValue)")
                    continue
                }
                let row = try ImportedGrant(fields)
                seen.append(
                    """
                    \(record.line) \(row.transactionID) of \(row.originalID): \(row.productID) to \(row.user.id) \
                    at \(row.purchasedAt.rfc3339) in \(row.environment)
                    """)
            } catch let fault as ImportFault {
                seen.append("\(record.line)! \(fault.field) \(fault.problem)")
            } catch let unreadable as ImportRecord.Unreadable {
                seen.append("\(record.line)! \(unreadable.problem)")
            }
        }
        #expect(file.ignored.isEmpty, "the columns of another system are known, also those that nobody needs")
        return seen
    }

    private static let whole =
        "2000000000000002 of 2000000000000001: pass to u1 at 2026-10-01T08:27:06.000Z in Production"

    @Test("RevenueCat's file with commas, semicolons and tabs, with and without a byte order mark")
    func separators() throws {
        for separator in [",", ";", "\t"] {
            for mark in ["", "\u{FEFF}"] {
                let content = Self.file([[:], [:]], separator: separator, mark: mark)
                #expect(try Self.read(content, from: .revenuecat) == ["2 \(Self.whole)", "3 \(Self.whole)"])
            }
        }
    }

    static let lines: [([String: String], String)] = [
        ([:], whole),
        // A trial and its conversion are transactions like all others; flags as versions before the fourth wrote them.
        (["is_trial_period": "true", "price_in_usd": "0"], whole),
        (["is_trial_conversion": "t", "is_sandbox": "f"], whole), (["is_sandbox": "FALSE"], whole),
        (["store": "mac_app_store"], whole), (["refunded_at": "null"], whole), (["ownership_type": ""], whole),
        (
            ["start_time": "2026-10-01 10:27:06.5+02:00", "product_identifier": "coins"],
            "2000000000000002 of 2000000000000001: coins to u1 at 2026-10-01T08:27:06.500Z in Production"
        ),
        // The user whom the app knows now; the first one where the last is a placeholder or an id of RevenueCat's.
        (["rc_original_app_user_id": "u0"], whole),
        (["rc_last_seen_app_user_id_alias": "$RCAnonymousID:1", "rc_original_app_user_id": "u1"], whole),
        (["rc_last_seen_app_user_id_alias": "null", "rc_original_app_user_id": "u1"], whole),
        (["rc_last_seen_app_user_id_alias": "$RCAnonymousID:1"], "skip anonymous_user"),
        (["rc_last_seen_app_user_id_alias": ""], "skip anonymous_user"),
        (
            ["rc_last_seen_app_user_id_alias": "undefined"],
            "! rc_last_seen_app_user_id_alias is a placeholder that stands for no user"
        ),
        (
            ["rc_last_seen_app_user_id_alias": "$RCAnonymousID:1", "rc_original_app_user_id": "0"],
            "! rc_original_app_user_id is a placeholder that stands for no user"
        ),
        // Other stores, whatever their ids look like.
        (["store": "play_store", "store_transaction_id": "GPA.3312-1234-5678-90123..1"], "skip other_store"),
        (["store": "stripe", "store_transaction_id": "si_ABC", "start_time": "soon"], "skip other_store"),
        (["store": "amazon"], "skip other_store"), (["store": "promotional"], "skip other_store"),
        (["store": "PLAY_STORE"], "skip other_store"), (["store": ""], "! store is missing"),
        (["is_sandbox": "true"], "skip sandbox"), (["is_sandbox": "t"], "skip sandbox"),
        (["is_sandbox": "perhaps"], "! is_sandbox must be true or false"),
        (["refunded_at": "2026-10-20 05:47:55"], "skip refunded"),
        (["ownership_type": "FAMILY_SHARED"], "skip family_shared"),
        // What is wrong of a line of ours is said in RevenueCat's words.
        (["store_transaction_id": ""], "! store_transaction_id is missing"),
        (
            ["store_transaction_id": "2.00000E+15"],
            "! store_transaction_id must be an id of Apple's: at most 64 digits"
        ),
        (["product_identifier": ""], "! product_identifier is missing"),
        (
            ["start_time": "10/01/2026"],
            "! start_time must be a time such as 2026-03-01T00:00:00Z, or milliseconds since 1970"
        ),
    ]

    @Test("what each line of RevenueCat's file is")
    func kinds() throws {
        let seen = try Self.read(Self.file(Self.lines.map(\.0)), from: .revenuecat)
        let expected = Self.lines.enumerated().map { index, line in
            "\(index + 2)\(line.1.hasPrefix("!") ? "" : " ")\(line.1)"
        }
        #expect(seen == expected)
        let sandbox = try Self.read(Self.file([["is_sandbox": "true"]]), from: .revenuecat, takesSandbox: true)
        #expect(sandbox.first?.hasSuffix("in Sandbox") == true, "\(sandbox)")
        // Times are UTC unless the operator says otherwise.
        let berlin = try Self.read(
            Self.file([[:]]), from: .revenuecat, timeZone: TimeZone(secondsFromGMT: 7200))
        #expect(berlin.first?.contains("2026-10-01T06:27:06.000Z") == true, "\(berlin)")
    }

    @Test("a file without a column that is needed says which were needed and found, and which system it may be of")
    func columns() throws {
        #expect(
            throws: ImportFileError(
                """
                has no column refunded_at; needed: store_transaction_id, original_store_transaction_id, \
                rc_last_seen_app_user_id_alias, product_identifier, start_time, store, is_sandbox, refunded_at; found: \
                rc_last_seen_app_user_id_alias, store_transaction_id, original_store_transaction_id, \
                product_identifier, start_time, store, is_sandbox
                """)
        ) {
            try Self.read(
                """
                rc_last_seen_app_user_id_alias,store_transaction_id,original_store_transaction_id,product_identifier,\
                start_time,store,is_sandbox

                """, from: .revenuecat)
        }
        for (content, hint) in [
            (Self.file([]), "--from revenuecat"), (Self.adapty, "--from adapty"),
        ] {
            let error = #expect(throws: ImportFileError.self) {
                try ImportFileTests.read(Array(content.utf8), requiring: ImportedGrant.required)
            }
            #expect(error?.description.hasSuffix("it looks like an export for import grants \(hint)") == true)
        }
        let adapty = #expect(throws: ImportFileError.self) { try Self.read(Self.file([]), from: .adapty) }
        #expect(adapty?.description.hasSuffix("--from revenuecat") == true)
    }

    /// The columns of Adapty's events, as its exports to Amazon S3 and Google Cloud Storage have them.
    private static let adapty = """
        profile_id,event_type,event_datetime,transaction_id,original_transaction_id,subscription_expires_at,\
        environment,revenue_usd,customer_user_id,store,product_id,cancellation_reason
        p1,trial_started,2026-10-01T08:27:06.000000+0000,11,11,,Production,0,u1,app_store,pass,
        p1,trial_converted,2026-10-08T08:27:06.0+0000,12,11,,Production,9.99,u1,app_store,pass,
        p1,subscription_renewal_cancelled,2026-10-09T08:27:06.0+0000,12,11,,Production,,u1,app_store,pass,unknown
        p2,non_subscription_purchase,2026-10-10T08:27:06.0+0000,21,21,,Production,4.99,u2,app_store,coins,
        p2,non_subscription_purchase_refunded,2026-10-11T08:27:06Z,21,21,,Production,-4.99,u2,app_store,coins,refund
        p3,subscription_started,2026-10-10T08:27:06.0+0000,31,31,,Production,4.99,,app_store,pass,
        p4,subscription_renewed,2026-10-10T08:27:06.0+0000,GPA.1-2,GPA.1,,Production,4.99,u4,play_store,pass,
        p5,subscription_renewed,2026-10-10T08:27:06.0+0000,52,51,,Sandbox,4.99,u5,app_store,pass,
        p6,subscription_renewed,2026-10-10 08:27:06,62,61,,Production,4.99,u6,app_store,pass,
        p7,subscription_renewed,2026-10-10T08:27:06.0+0000,72,71,,Production,4.99,null,app_store,pass,

        """

    @Test("Adapty's events: purchases alone, those of which another line says that they were refunded apart")
    func events() throws {
        var pieces = [Array(Self.adapty.utf8)]
        var file = ImportFile(.csv, from: .adapty) { pieces.popLast() ?? [] }
        let refunded = try ImportOrigin.adapty.refunds(in: &file)
        #expect(refunded == ["21"])
        #expect(
            try Self.read(Self.adapty, from: .adapty, refunded: refunded) == [
                "2 11 of 11: pass to u1 at 2026-10-01T08:27:06.000Z in Production",
                "3 12 of 11: pass to u1 at 2026-10-08T08:27:06.000Z in Production", "4 skip no_purchase",
                "5 skip refunded", "6 skip refunded", "7 skip anonymous_user", "8 skip other_store", "9 skip sandbox",
                """
                10! purchase_date or event_datetime has no time zone: write 2026-03-01T00:00:00Z, or give --time-zone \
                UTC or another one
                """, "11! customer_user_id is a placeholder that stands for no user",
            ])
        // The names of Adapty's webhooks, as JSON lines: the date of the purchase goes before that of the event,
        // wherever it stands.
        let line = #"""
            {"event_datetime": "2026-10-20T00:00:00.0+0000", "purchase_date": "2026-10-01T08:27:06.0+0000", \#
            "event_type": "subscription_renewed", "transaction_id": 410003298316682, "original_transaction_id": "1", \#
            "customer_user_id": "u1", "store": "app_store", "environment": "Production", \#
            "product_id": "internal", "vendor_product_id": "pass"}
            """#
        let other = line.replacing("\"event_datetime\"", with: "\"zone\": 1, \"event_datetime\"")
            .replacing(
                "\"product_id\": \"internal\", \"vendor_product_id\": \"pass\"",
                with: "\"vendor_product_id\": \"pass\", \"product_id\": \"internal\"")
        for content in [line, other] {
            #expect(
                try Self.read(content, from: .adapty, .jsonl) == [
                    "1 410003298316682 of 1: pass to u1 at 2026-10-01T08:27:06.000Z in Production"
                ])
        }
        // The same in CSV, in either order.
        for columns in [["vendor_product_id", "product_id"], ["product_id", "vendor_product_id"]] {
            let values = columns.map { $0 == "product_id" ? "internal" : "pass" }
            let content = """
                event_type,purchase_date,transaction_id,original_transaction_id,environment,customer_user_id,store,\
                \(columns.joined(separator: ","))
                trial_started,2026-10-01T08:27:06Z,7,7,Production,u1,app_store,\(values.joined(separator: ","))

                """
            #expect(
                try Self.read(content, from: .adapty)
                    == ["2 7 of 7: pass to u1 at 2026-10-01T08:27:06.000Z in Production"])
        }
    }
}
