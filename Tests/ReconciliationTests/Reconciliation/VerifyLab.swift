import AppStore
import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import Logging
import Postgres
import Purchases
import RabbitMQ
import TestServers
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Service
@testable import Settings
@testable import WorkQueue

/// A receipt verifier between a simulated App Store over real HTTP and a real ledger.
struct VerifyLab: Sendable {
    static let bundleID = "com.example.game"
    static let appID = "game"

    let store: AppStoreSimulator
    let base: String
    let lab: LedgerLab
    let halts: Halts
    let http: HTTPClient

    static func with(
        namesResponder: Bool = false, _ body: (VerifyLab) async throws -> Void
    ) async throws {
        try await LedgerLab.with { lab in
            let store = try AppStoreSimulator(.init(seed: 1, namesResponder: namesResponder), logger: .silent)
            try await RunningService.with(store) {
                let base = "http://127.0.0.1:\(try await store.boundPort)"
                let verify = VerifyLab(
                    store: store, base: base, lab: lab, halts: Halts(ledger: lab.ledger, logger: .silent),
                    http: HTTPClient.shared)
                try await body(verify)
            }
        }
    }

    /// The app as its configuration describes it. `policy` changes the app's policy.
    func app(
        environments: [String] = ["Production"], secret: String? = nil, hasServerAPI: Bool = true,
        hasVerifyReceipt: Bool = true, legacyReceipts: String? = nil, hasRoot: Bool = true, bundleID: String = bundleID,
        ocsp: OCSPMode = .off,
        _ policy: (inout AppPolicy) -> Void = { _ in }
    ) async throws -> AppServices {
        let configuration = try configuration(
            environments: environments, secret: secret, hasServerAPI: hasServerAPI, hasVerifyReceipt: hasVerifyReceipt,
            legacyReceipts: legacyReceipts, hasRoot: hasRoot, bundleID: bundleID, ocsp: ocsp)
        var app = try #require(configuration.apps[Self.appID])
        policy(&app.policy)
        return try await AppServices(app, http: http)
    }

    /// - Parameters:
    ///   - more: lines of the app's section; `coins` may be given on trust where they say so.
    ///   - products: beside `coins`.
    ///   - others: further apps, of which the same App Store is asked.
    func configuration(
        environments: [String] = ["Production"], secret: String? = nil, hasServerAPI: Bool = true,
        hasVerifyReceipt: Bool = true, legacyReceipts: String? = nil, hasRoot: Bool = true, bundleID: String = bundleID,
        ocsp: OCSPMode = .off, more: [String] = [], grantFrom: String? = "2020-01-01T00:00:00Z",
        products: String? = nil,
        others: [String] = []
    ) throws -> Configuration {
        let directory = FileManager.default.temporaryDirectory.appending(path: "makegood-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        try Data(store.rootCertificateDER).write(to: directory.appending(path: "root.der"))
        try Data(store.credentials.privateKeyPEM.utf8).write(to: directory.appending(path: "key.p8"))
        let urls = { (suffix: String) in
            "productionUrl: '\(base)/production\(suffix)', sandboxUrl: '\(base)/sandbox\(suffix)'"
        }
        let credentials = store.credentials
        let mark = more.contains { $0.hasPrefix("provisional:") } ? ", provisional: true" : ""
        var lines = [
            "apps:", "  - id: \(Self.appID)", "    bundleId: \(bundleID)", "    appAppleId: 1",
            "    environments: [\(environments.joined(separator: ", "))]",
            "    products: [{id: coins, type: consumable, goods: [{item: coin, amount: 60}]\(mark)}"
                + "\(products.map { ", \($0)" } ?? "")]",
        ]
        if let grantFrom { lines.append("    grantFrom: \(grantFrom)") }
        lines += more.map { "    \($0)" }
        // An app usually has both services: verifyReceipt is asked unless a test says otherwise.
        if let strategies = legacyReceipts ?? (hasVerifyReceipt ? "verifyReceipt" : nil) {
            lines.append("    legacyReceipts: \(strategies)")
        }
        if ocsp != .off { lines.append("    ocsp: \(ocsp)") }
        if hasRoot { lines.append("    rootCertificates: [root.der]") }
        if hasServerAPI {
            lines.append(
                "    serverApi: {issuerId: '\(credentials.issuerId)', keyId: '\(credentials.keyId)', "
                    + "privateKeyFile: key.p8, callsPerSecond: 10000, \(urls(""))}")
        }
        if hasVerifyReceipt {
            lines.append(
                "    verifyReceipt: {sharedSecret: '\(secret ?? credentials.sharedSecret)', \(urls("/verifyReceipt"))}")
        }
        for (place, other) in others.enumerated() {
            lines += [
                "  - id: \(other)", "    bundleId: com.example.\(other)", "    appAppleId: \(place + 2)",
                "    environments: [Production]", "    rootCertificates: [root.der]",
                "    products: [{id: coins, type: consumable, goods: [{item: coin, amount: 60}]}]",
                "    serverApi: {issuerId: '\(credentials.issuerId)', keyId: '\(credentials.keyId)', "
                    + "privateKeyFile: key.p8, callsPerSecond: 10000, \(urls(""))}",
            ]
        }
        return try Configuration.parse(lines.joined(separator: "\n"), directory: directory)
    }

    /// A worker's receipt processor for this configuration. Its broker is away.
    ///
    /// - Parameter apps: an app directory that the test itself changes.
    func processor(
        _ configuration: Configuration, apps: AppDirectory? = nil,
        security: SecurityLog = .init(secret: [], logger: .silent)
    ) async throws -> ReceiptProcessor {
        let apps = apps ?? AppDirectory(http: http)
        try await apps.update(configuration, ledger: lab.ledger)
        let queues = Queues()
        let publisher = Publisher(
            try BrokerConfiguration(url: "amqp://127.0.0.1:1"), topology: queues.topology, logger: .silent)
        await publisher.close()
        return ReceiptProcessor(
            ledger: lab.ledger, apps: apps, halts: halts, receiptVerifier: receiptVerifier(),
            workQueue: WorkQueue(publisher: publisher, queues: queues), logger: .silent, security: security)
    }

    /// A worker's own verifier, with breakers of its own.
    func receiptVerifier(scale: Double = 1) -> ReceiptVerifier {
        receiptVerifier(governor: governor(scale: scale), scale: scale)
    }

    func receiptVerifier(governor: Governor, scale: Double = 1) -> ReceiptVerifier {
        receiptVerifier(AppleGateway(halts: halts, governor: governor), scale: scale)
    }

    func receiptVerifier(_ appleGateway: AppleGateway, scale: Double = 1) -> ReceiptVerifier {
        ReceiptVerifier(appleGateway: appleGateway, ledger: lab.ledger, schedule: RetrySchedule(scale: scale))
    }

    func governor(scale: Double = 1) -> Governor {
        Governor(ledger: lab.ledger, callsMax: 64, waitersMax: 32, scale: scale, logger: .silent)
    }

    /// Sells one purchase of `coins`, unless told otherwise.
    func sell(_ change: (inout SaleRequest) -> Void = { _ in }) async throws -> Sale {
        var request = SaleRequest(app: Self.bundleID, productId: "coins")
        change(&request)
        return try #require(try await store.sell(request).first)
    }

    /// A row as a worker reads it, without a database.
    func row(
        _ proof: Proof, lane: Lane? = nil, transactionID: String? = nil, originalTransactionID: String? = nil,
        isVouched: Bool = false, attempt: Int = 0, age: TimeInterval = 0, isTakenOver: Bool = false,
        hasPayload: Bool = true, id: UUID = UUID(), readAgo: TimeInterval = 0, reason: Reason? = nil,
        isOnTrust: Bool = false
    ) -> StoredReceipt {
        StoredReceipt(
            id: id, appID: Self.appID, userID: "u1", proof: proof, transactionID: transactionID,
            originalTransactionID: originalTransactionID, isVouched: isVouched, lane: lane ?? Lane(proof.kind),
            state: .received, reason: reason?.rawValue, attempt: attempt, rescues: 0,
            receivedAt: .now.addingTimeInterval(-age), claimedAt: .now.addingTimeInterval(-age),
            readAt: .now.addingTimeInterval(-readAgo),
            isTakenOver: isTakenOver, hasPayload: hasPayload, isOnTrust: isOnTrust)
    }
}

/// A short form of an examination, so that a table of them can be read.
indirect enum Seen: Equatable, CustomStringConvertible {
    /// By transaction id, in order.
    case entries([String: Decision])
    case identifier(String, Reason)
    case whole(Decision)
    case retry(Reason)
    case postpone(Reason)
    /// By transaction id, and why the rest waits.
    case partly([String: Decision], Reason)
    case reroute
    /// What may be given on trust, by transaction id, and how the receipt goes on.
    case provisional([String: Decision], Seen)

    init(_ examination: Examination) {
        switch examination {
        case .unreached(_, let otherwise): self = Seen(otherwise)
        case .decided(.transactions(let entries)): self = .entries(Self.decisions(entries))
        case .partly(let entries, .retry(let reason, _)), .partly(let entries, .postpone(let reason, _)):
            self = .partly(Self.decisions(entries), reason)
        case .decided(.identifier(let id, let reason)): self = .identifier(id, reason)
        case .decided(.receipt(let decision)): self = .whole(decision)
        case .retry(let reason, _): self = .retry(reason)
        case .postpone(let reason, _): self = .postpone(reason)
        case .reroute: self = .reroute
        }
    }

    static func decisions(_ entries: [Verdict.Entry]) -> [String: Decision] {
        Dictionary(entries.map { ($0.transaction.id, $0.decision) }, uniquingKeysWith: { first, _ in first })
    }

    var description: String {
        switch self {
        case .entries(let entries): "entries \(entries)"
        case .identifier(let id, let reason): "identifier \(id) \(reason)"
        case .whole(let decision): "whole \(decision)"
        case .retry(let reason): "retry \(reason)"
        case .postpone(let reason): "postpone \(reason)"
        case .partly(let entries, let reason): "partly \(entries), then \(reason)"
        case .reroute: "reroute"
        case .provisional(let entries, let otherwise): "provisional \(entries), otherwise \(otherwise)"
        }
    }
}

extension ReceiptVerifier {
    /// What the receipt comes to, and what of it may be given on trust.
    func seen(_ receipt: StoredReceipt, for app: AppServices) async throws -> Seen {
        let examination = await examine(receipt, for: app)
        guard case .unreached(let unreached, _) = examination else { return Seen(examination) }
        let judge = try await freshJudge(of: unreached.entries.map(\.transaction), in: receipt, for: app)
        let wanted = TrustCandidates(unreached, by: judge).wanted
        return wanted.isEmpty ? Seen(examination) : .provisional(Seen.decisions(wanted), Seen(examination))
    }
}

extension Decision {
    /// `coins` once.
    static let coins = Decision.grant(goods: [.init(item: "coin", amount: 60)], source: .poster)
}
