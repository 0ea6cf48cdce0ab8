/// First lines of Apple's reports as the years brought them, taken from the columns that public programs read.
enum ReportHeaders {
    static let sales: [(since: String, columns: [String])] = [
        // jaysonlane/itunes-connect-auto-ingest
        ("2011", salesOf2011),
        // anotherlab/Autoinjestion-dotnet
        ("2016", salesOf2011 + ["Category", "CMB", "Device", "Supported Platforms"]),
        // matisiekpl/appstore-sdk-go
        (
            "2019",
            salesOf2011 + [
                "Category", "CMB", "Device", "Supported Platforms", "Proceeds Reason", "Preserved Pricing", "Client",
                "Order Type",
            ]
        ),
        // A column that nobody has seen yet, in front.
        ("the future", ["Sales Region"] + salesOf2011 + ["Order Type"]),
    ]

    private static let salesOf2011 = [
        "Provider", "Provider Country", "SKU", "Developer", "Title", "Version", "Product Type Identifier", "Units",
        "Developer Proceeds", "Begin Date", "End Date", "Customer Currency", "Country Code", "Currency of Proceeds",
        "Apple Identifier", "Customer Price", "Promo Code", "Parent Identifier", "Subscription", "Period",
    ]

    static let financial: [(since: String, columns: [String])] = [
        // ole/itunesconnect-financialreports
        (
            "2010",
            [
                "Start Date", "End Date", "UPC", "ISRC", "Vendor Identifier", "Quantity", "Partner Share",
                "Extended Partner Share", "Partner Share Currency", "Sale or Return", "Apple Identifier",
                "Artist/Show/Developer", "Title", "Label/Studio/Network/Developer", "Grid", "Product Type Identifier",
                "ISAN/Other Identifier", "Country Of Sale", "Pre-order Flag", "Promo Code", "Customer Price",
                "Customer Currency",
            ]
        ),
        // fedoco/apple-slicer
        (
            "2014",
            [
                "Start Date", "End Date", "UPC", "ISRC/ISBN", "Vendor Identifier", "Quantity", "Partner Share",
                "Extended Partner Share", "Partner Share Currency", "Sales or Return", "Apple Identifier",
                "Artist/Show/Developer/Author", "Title", "Label/Studio/Network/Developer/Publisher", "Grid",
                "Product Type Identifier", "ISAN/Other Identifier", "Country Of Sale", "Pre-order Flag", "Promo Code",
                "Customer Price", "Customer Currency",
            ]
        ),
    ]

    /// The detailed Financial Report: mpfouziya/End-to-End-ETL-using-Google-Workflows, and the columns of Apple's page.
    static let detailed = [
        "Transaction Date", "Settlement Date", "Apple Identifier", "SKU", "Title", "Developer Name",
        "Product Type Identifier", "Country of Sale", "Quantity", "Partner Share", "Extended Partner Share",
        "Partner Share Currency", "Customer Price", "Customer Currency", "Sale or Return", "Promo Code", "Order Type",
        "Region",
    ]

    /// A line with these values, and `x` in every other column.
    static func line(_ columns: [String], _ values: [String: String]) -> [UInt8] {
        Array(columns.map { values[$0] ?? "x" }.joined(separator: "\t").utf8)
    }

    static func header(_ columns: [String]) -> [UInt8] { Array(columns.joined(separator: "\t").utf8) }
}
