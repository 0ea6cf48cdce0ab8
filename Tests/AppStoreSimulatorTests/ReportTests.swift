import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: the store's reports hold what Apple's would: each sale on its day in Los Angeles, refunds on theirs, restored
/// products apart, and neither sandbox nor family. Method: sales around two midnights and a change of the clocks, then
/// the reports over HTTP.
@Suite struct ReportTests {
    private struct Row: Equatable {
        var product: String
        var type: String
        var units: String
        var country: String
        var price: String
    }

    /// The rows of a report without those of apps, and its first line.
    private static func rows(
        _ text: String, product: String = "SKU", units: String = "Units", country: String = "Country Code"
    ) throws -> (columns: [String], rows: [Row]) {
        let lines = text.split(separator: "\n").map {
            $0.split(separator: "\t", omittingEmptySubsequences: false).map(String.init)
        }
        let columns = try #require(lines.first)
        let index = { (name: String) in try #require(columns.firstIndex(of: name), "\(name)") }
        let (product, units, country) = (try index(product), try index(units), try index(country))
        let (type, price) = (try index("Product Type Identifier"), try index("Customer Price"))
        return (
            columns,
            lines.dropFirst().filter { $0.count == columns.count && $0[type] != "1F" }.map {
                Row(product: $0[product], type: $0[type], units: $0[units], country: $0[country], price: $0[price])
            }
        )
    }

    private static func milliseconds(_ text: String) throws -> Int64 {
        Int64(try Date(text, strategy: .iso8601).timeIntervalSince1970 * 1000)
    }

    @Test func `a day has its sales and refunds, by the clock of Los Angeles`() async throws {
        try await RunningSimulator.with { store in
            try await store.control(.POST, "apps", #"{"app":"com.example.game"}"#)
            let sold = { (fields: String, moment: String) async throws -> String in
                try await store.sold(fields + #","purchaseDate":\#(try Self.milliseconds(moment))"#)
                    .string("transactionId")
            }
            let first = try await sold(#""quantity":2,"price":1980"#, "2026-11-28T08:00:00Z")
            _ = try await sold(#""storefront":"DEU","currency":"EUR""#, "2026-11-29T07:59:59Z")
            _ = try await sold(#""quantity":1"#, "2026-11-28T07:59:59Z")
            _ = try await sold(#""quantity":1"#, "2026-11-29T08:00:00Z")
            _ = try await sold(#""environment":"Sandbox""#, "2026-11-28T12:00:00Z")
            _ = try await sold(
                #""type":"Auto-Renewable Subscription","family":["bob"],"customer":"ann""#, "2026-11-28T12:00:00Z")
            let sword = try await sold(#""type":"Non-Consumable""#, "2026-11-28T12:00:00Z")
            _ = try await sold(
                #""type":"Non-Consumable","originalTransactionId":"\#(sword)""#, "2026-11-28T13:00:00Z")
            try await store.control(
                .POST, "purchases/\(first)/refund",
                #"{"revocationDate":\#(try Self.milliseconds("2026-11-30T07:59:59Z"))}"#)
            let withdrawn = try await sold(#""quantity":1"#, "2026-11-29T12:00:00Z")
            try await store.control(
                .POST, "purchases/\(withdrawn)/refund",
                #"{"revocationType":"FAMILY_REVOKE","revocationDate":\#(try Self.milliseconds("2026-11-29T13:00:00Z"))}"#
            )

            let day = try Self.rows(try await store.control(.GET, "reports/sales?day=2026-11-28").text)
            #expect(day.columns.count == 28)
            #expect(
                day.rows == [
                    Row(product: "coins6", type: "IA1", units: "1", country: "DE", price: "0.99"),
                    Row(product: "coins6", type: "IA1", units: "3", country: "US", price: "0.99"),
                    Row(product: "coins6", type: "IA3", units: "1", country: "US", price: "0.00"),
                    Row(product: "coins6", type: "IAY", units: "1", country: "US", price: "0.99"),
                ])
            let next = try Self.rows(try await store.control(.GET, "reports/sales?day=2026-11-29").text).rows
            #expect(next.map(\.units).sorted() == ["-2", "2"], "\(next)")
            let quiet = try await store.control(.GET, "reports/sales?day=2026-11-20").text
            #expect(quiet.contains("\t1F\t1\t"))
            #expect(try Self.rows(quiet).rows.isEmpty)

            let month = try await store.control(.GET, "reports/financial?month=2027-02").text
            #expect(month.contains("11/01/2026\t11/28/2026\t") && month.contains("\nTotal_Rows\t"))
            let settled = try Self.rows(
                month, product: "Vendor Identifier", units: "Quantity", country: "Country Of Sale"
            ).rows
            #expect(settled.reduce(0) { $0 + (Int($1.units) ?? 0) } == 6, "\(settled)")
            #expect(settled.allSatisfy { $0.type != "IA3" })

            for path in ["sales", "sales?day=2026-02-30", "sales?day=11/28/2026", "financial?month=2027-13"] {
                let answer = try await store.call(.GET, "/control/reports/\(path)")
                #expect(answer.status == 400 && ["day", "month"].contains(answer.string("field")), "\(answer.text)")
            }
        }
    }
}
