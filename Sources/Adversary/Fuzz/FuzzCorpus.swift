import AppStore
import AppStoreSimulator
package import Foundation
import Logging

/// The inputs that the fuzzer mutates, by parser, and the root certificate of the genuine ones.
///
/// On disk the corpus is a folder with `root.der` and one folder for each parser. A reader must always believe a file
/// whose name begins with `genuine`: it judges the file's certificates at the file's own date.
package struct FuzzCorpus: Sendable {
    package struct Entry: Sendable {
        package var name: String
        package var bytes: [UInt8]

        package var isGenuine: Bool { name.hasPrefix("genuine") }
    }

    package struct Unreadable: Error, CustomStringConvertible {
        package let description: String
    }

    package static let bundleID = "com.example.game"
    private static let appAppleID: Int64 = 1_234_567_890

    package let root: [UInt8]
    /// When the corpus was made: the date at which readers judge inputs that name no date.
    package let date: Date
    package let entries: [ParserProbe.Parser: [Entry]]

    /// Reads a folder that ``write(to:)`` wrote, with files that were added since.
    package init(directory: URL) throws {
        func read(_ url: URL) throws -> [UInt8] {
            do { return Array(try Data(contentsOf: url)) } catch {
                throw Unreadable(description: "the corpus: \(url.lastPathComponent) cannot be read")
            }
        }
        root = try read(directory.appending(path: "root.der"))
        guard
            let seconds = Double(
                String(decoding: try read(directory.appending(path: "date")), as: UTF8.self)
                    .trimmingCharacters(in: .whitespacesAndNewlines))
        else { throw Unreadable(description: "the corpus: date is no number of seconds") }
        date = Date(timeIntervalSince1970: seconds)
        var entries: [ParserProbe.Parser: [Entry]] = [:]
        for parser in ParserProbe.Parser.allCases {
            let folder = directory.appending(path: parser.rawValue)
            let names = (try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? []
            entries[parser] = try names.sorted().map { name in
                Entry(name: name, bytes: try read(folder.appending(path: name)))
            }
        }
        self.entries = entries
    }

    package func write(to directory: URL) throws {
        let files = FileManager.default
        try files.createDirectory(at: directory, withIntermediateDirectories: true)
        try Data(root).write(to: directory.appending(path: "root.der"))
        try Data("\(Int(date.timeIntervalSince1970))\n".utf8).write(to: directory.appending(path: "date"))
        for (parser, entries) in entries {
            let folder = directory.appending(path: parser.rawValue)
            try files.createDirectory(at: folder, withIntermediateDirectories: true)
            for entry in entries { try Data(entry.bytes).write(to: folder.appending(path: entry.name)) }
        }
    }

    package func probe() throws -> ParserProbe {
        ParserProbe(
            app: try AppIdentity(
                bundleId: Self.bundleID, appAppleId: Self.appAppleID, environments: [.production, .sandbox]),
            anchors: try TrustAnchors(rootCertificates: [root], acceptAppleRoots: false), date: date)
    }
}

// MARK: - Making one

extension FuzzCorpus {
    /// Genuine proofs of a new App Store of our own, its forgeries, and inputs made by hand.
    package static func made() async throws -> FuzzCorpus {
        var logger = Logger(label: "fuzz")
        logger.logLevel = .critical
        let store = try AppStoreSimulator(SimulatorConfiguration(), logger: logger)
        try store.register(RegisteredApp(app: "game", bundleId: bundleID, appAppleId: appAppleID))
        var entries: [ParserProbe.Parser: [Entry]] = [:]
        func add(_ parser: ParserProbe.Parser, _ name: String, _ bytes: [UInt8]) {
            entries[parser, default: []].append(Entry(name: name, bytes: bytes))
        }

        var coins = SaleRequest(app: "game", productId: "com.example.game.coins6")
        coins.appAccountToken = "7E3FB204-6E3A-4C5E-9F0A-0123456789AB"
        var pass = SaleRequest(app: "game", productId: "com.example.game.pass")
        pass.type = .autoRenewable
        pass.environment = .sandbox
        let sales = try await [store.sell(coins)[0], store.sell(pass)[0]]
        for (number, sale) in sales.enumerated() {
            add(.jws, "genuine-\(number)", Array(sale.signedTransaction.utf8))
        }
        add(.inspect, "genuine-transaction", Array(sales[0].signedTransaction.utf8))
        for kind in [Forgery.Kind.swappedPayload, .foreignRoot, .chainLength, .algorithmNone] {
            add(.jws, kind.rawValue, Array(try store.forge(.init(kind: kind, app: "game")).utf8))
        }

        var renewed = NotificationRequest(
            app: "game", notificationType: "DID_RENEW", transactionId: sales[1].purchase.transactionId)
        renewed.environment = .sandbox
        let test = NotificationRequest(app: "game", notificationType: "TEST")
        add(.notification, "genuine-test", Array(try store.hold(test).signedPayload.utf8))
        let notification = Array(try store.hold(renewed).signedPayload.utf8)
        add(.notification, "genuine-renewed", notification)
        add(.inspect, "genuine-notification", notification)
        add(.jws, "genuine-notification", notification)

        let ids = sales.map(\.purchase.transactionId)
        for style in [ReceiptStyle.sha256, .sha1, .ber, .xcode] {
            var request = ReceiptRequest(app: "game", transactionIds: Array(ids.prefix(style == .ber ? 2 : 1)))
            request.receiptStyle = style
            let base64 = try store.receipt(request)
            let octets = Array(Data(base64Encoded: base64) ?? Data())
            add(.receipt, style == .xcode ? "xcode" : "genuine-\(style.rawValue)", octets)
            if style == .ber { add(.inspect, "genuine-receipt", Array(base64.utf8)) }
            if style == .sha256 { add(.base64, "receipt", Array(base64.utf8)) }
        }
        let chain = certificates(in: sales[0].signedTransaction)
        add(.certificates, "genuine-chain", Array(chain.joined()))
        add(.certificates, "root", store.rootCertificateDER)
        let pem =
            "-----BEGIN CERTIFICATE-----\n"
            + Data(store.rootCertificateDER).base64EncodedString(options: [.lineLength64Characters])
            + "\n-----END CERTIFICATE-----\n"
        add(.certificates, "root.pem", Array(pem.utf8))
        for (parser, name, text) in FuzzSamples.texts(signed: sales[0].signedTransaction) {
            add(parser, name, Array(text.utf8))
        }
        for (parser, name, bytes) in FuzzSamples.octets { add(parser, name, bytes) }
        return FuzzCorpus(
            root: store.rootCertificateDER, date: Date(timeIntervalSince1970: Date.now.timeIntervalSince1970.rounded()),
            entries: entries)
    }

    private init(root: [UInt8], date: Date, entries: [ParserProbe.Parser: [Entry]]) {
        self.root = root
        self.date = date
        self.entries = entries
    }

    /// The three certificates in the header of a JWS, DER.
    private static func certificates(in jws: String) -> [[UInt8]] {
        struct Header: Decodable {
            let x5c: [Data]
        }
        let header = BaseText.url.decode(Array(jws.utf8.prefix { $0 != UInt8(ascii: ".") })) ?? []
        return (try? JSONDecoder().decode(Header.self, from: Data(header)))?.x5c.map { Array($0) } ?? []
    }
}
