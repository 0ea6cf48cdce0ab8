/// A row of a report, without its units.
private struct ReportLine: Hashable {
    var app: String
    var product: String
    var type: String
    var country: String
    var currency: String
    var price: Int64
    var isRefund: Bool
    var subscription: String
    var orderType: String

    /// The order of the rows in a report.
    var key: [String] {
        [app, product, country, type, currency, isRefund ? "R" : "S", "\(price)", subscription, orderType]
    }
}

/// Apple's reports over the ledger (Apple, "Sales Report", "Financial Report", "Product type identifiers").
extension Storefront {
    private static let salesColumns = [
        "Provider", "Provider Country", "SKU", "Developer", "Title", "Version", "Product Type Identifier", "Units",
        "Developer Proceeds", "Begin Date", "End Date", "Customer Currency", "Country Code", "Currency of Proceeds",
        "Apple Identifier", "Customer Price", "Promo Code", "Parent Identifier", "Subscription", "Period", "Category",
        "CMB", "Device", "Supported Platforms", "Proceeds Reason", "Preserved Pricing", "Client", "Order Type",
    ]
    private static let financialColumns = [
        "Start Date", "End Date", "UPC", "ISRC/ISBN", "Vendor Identifier", "Quantity", "Partner Share",
        "Extended Partner Share", "Partner Share Currency", "Sales or Return", "Apple Identifier",
        "Artist/Show/Developer/Author", "Title", "Label/Studio/Network/Developer/Publisher", "Grid",
        "Product Type Identifier", "ISAN/Other Identifier", "Country Of Sale", "Pre-order Flag", "Promo Code",
        "Customer Price", "Customer Currency",
    ]
    /// The countries that reports of this store know, of three letters and of two.
    private static let countries = [
        "USA": "US", "CAN": "CA", "MEX": "MX", "BRA": "BR", "GBR": "GB", "IRL": "IE", "DEU": "DE", "AUT": "AT",
        "CHE": "CH", "FRA": "FR", "BEL": "BE", "NLD": "NL", "ITA": "IT", "ESP": "ES", "PRT": "PT", "SWE": "SE",
        "NOR": "NO", "DNK": "DK", "FIN": "FI", "POL": "PL", "TUR": "TR", "ISR": "IL", "ARE": "AE", "IND": "IN",
        "CHN": "CN", "HKG": "HK", "TWN": "TW", "JPN": "JP", "KOR": "KR", "SGP": "SG", "AUS": "AU", "NZL": "NZ",
    ]

    /// - Parameter day: such as `2026-11-28`.
    func salesReport(day text: String) throws(ControlError) -> String {
        guard let day = AppleDate.day(text) else { throw ControlError(field: "day", "must be such as 2026-11-28") }
        let date = AppleDate.reportDay(day)
        var rows = [Self.salesColumns]
        for (line, units) in try lines(of: day...day, takesFree: true) {
            let price = Self.decimal(line.isRefund ? -line.price : line.price)
            rows.append([
                "APPLE", "US", line.product, "Example", line.product, line.type == "1F" ? "1.0" : " ", line.type,
                "\(line.isRefund ? -units : units)", Self.decimal(line.price), date, date, line.currency, line.country,
                line.currency, Self.number(line.product), price, " ", line.type == "1F" ? " " : line.app,
                line.subscription, " ", "Games", " ", "iPhone", "iOS", " ", " ", " ", line.orderType,
            ])
        }
        return Self.text(rows)
    }

    /// - Parameter month: of Apple's fiscal calendar, such as `2027-02`.
    func financialReport(month text: String) throws(ControlError) -> String {
        let parts = text.split(separator: "-").compactMap { Int($0) }
        guard text.utf8.count == 7, parts.count == 2, (2008...9998).contains(parts[0]), (1...12).contains(parts[1])
        else { throw ControlError(field: "month", "must be such as 2027-02") }
        let days = AppleDate.fiscalMonth(parts[1], of: Int64(parts[0]))
        var rows = [Self.financialColumns]
        var (total, amount): (Int, Int64) = (0, 0)
        for (line, units) in try lines(of: days, takesFree: false) {
            let signed = line.isRefund ? -units : units
            total += signed
            amount += line.price * Int64(signed)
            rows.append([
                AppleDate.reportDay(days.lowerBound), AppleDate.reportDay(days.upperBound), "", "", line.product,
                "\(signed)", Self.decimal(line.price), Self.decimal(line.price * Int64(signed)), line.currency,
                line.isRefund ? "R" : "S", Self.number(line.product), "Example", line.product, "", "", line.type, "",
                line.country, "", "", Self.decimal(line.price), line.currency,
            ])
        }
        let totals = [
            ["Total_Rows", "\(rows.count - 1)"], ["Total_Amount", Self.decimal(amount)], ["Total_Units", "\(total)"],
        ]
        return Self.text(rows + totals)
    }

    /// The rows of these days in Los Angeles with their units, in order.
    private func lines(
        of days: ClosedRange<Int64>, takesFree: Bool
    ) throws(ControlError) -> [(line: ReportLine, units: Int)] {
        let (purchases, apps) = ledger.read { ($0.purchases, $0.apps.values.map(\.bundleId)) }
        var ends: [String: Int64] = [:]
        for purchase in purchases { ends[purchase.transactionId] = purchase.revocationDate }
        var units: [ReportLine: Int] = [:]
        for app in apps {
            units[
                ReportLine(
                    app: app, product: app, type: "1F", country: "US", currency: "USD", price: 0, isRefund: false,
                    subscription: " ", orderType: " ")] = 1
        }
        for purchase in purchases where purchase.isReported && (takesFree || purchase.price != 0) {
            let first = purchase.originalTransactionId
            let isRestored =
                purchase.type == .nonConsumable && first != purchase.transactionId
                && ends[first].map { $0 > purchase.purchaseDate } ?? true
            if isRestored, !takesFree { continue }
            guard let country = Self.countries[purchase.storefront] else {
                throw ControlError(
                    field: "storefront", "reports do not know the country of \(purchase.transactionId)")
            }
            let isPeriod = purchase.type == .autoRenewable
            var line = ReportLine(
                app: purchase.app, product: purchase.productId, type: isRestored ? "IA3" : purchase.reportType,
                country: country, currency: purchase.currency,
                price: isRestored ? 0 : purchase.price / Int64(max(1, purchase.quantity)), isRefund: false,
                subscription: isPeriod ? (purchase.transactionReason == "RENEWAL" ? "Renewal" : "New") : " ",
                orderType: purchase.offerDiscountType == "PAY_UP_FRONT" ? "Pay Up Front" : " ")
            if days.contains(AppleDate(milliseconds: purchase.purchaseDate).pacificDay) {
                units[line, default: 0] += purchase.quantity
            }
            guard !isRestored, purchase.isRefundReported, let date = purchase.revocationDate,
                days.contains(AppleDate(milliseconds: date).pacificDay)
            else { continue }
            line.isRefund = true
            units[line, default: 0] += purchase.quantity
        }
        return units.sorted { $0.key.key.lexicographicallyPrecedes($1.key.key) }.map { ($0.key, $0.value) }
    }

    private static func text(_ rows: [[String]]) -> String {
        rows.map { $0.joined(separator: "\t") + "\n" }.joined()
    }

    /// Thousandths as Apple writes amounts: `0.99`.
    private static func decimal(_ thousandths: Int64) -> String {
        let cents = abs(thousandths) / 10
        return "\(thousandths < 0 ? "-" : "")\(cents / 100).\(cents % 100 < 10 ? "0" : "")\(cents % 100)"
    }

    /// The number by which Apple knows a product: ten digits, made of its name (FNV-1a).
    private static func number(_ product: String) -> String {
        let hash = product.utf8.reduce(0xCBF2_9CE4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
        return "\(1_000_000_000 + hash % 9_000_000_000)"
    }
}

extension Purchase {
    /// Whether a customer paid for it at Apple, in production.
    fileprivate var isReported: Bool { environment == .production && inAppOwnershipType == "PURCHASED" }

    /// Whether its end is a refund: no withdrawal, no upgrade, no way into a bundle or out of it.
    fileprivate var isRefundReported: Bool {
        !["FAMILY_REVOKE", "ASSIGNMENT_REVOKE"].contains(revocationType ?? "") && isUpgraded != true
            && revocationReason != 2
    }

    fileprivate var reportType: String {
        switch type {
        case .consumable, .nonConsumable: "IA1"
        case .nonRenewing: "IA9"
        case .autoRenewable: "IAY"
        }
    }
}
