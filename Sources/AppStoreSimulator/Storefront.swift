import Crypto
import Foundation

/// The store itself, without HTTP: sells, signs, refunds, and answers Apple's two questions.
struct Storefront: Sendable {
    let rootCertificateDER: [UInt8]
    let credentials: Credentials
    let ledger: Ledger
    let faults: Faults
    let calls: CallLog

    private let signer: TransactionSigner
    private let forger: Forger
    private let receipts: ReceiptFormat
    private let bearer: BearerToken

    init(_ configuration: SimulatorConfiguration) throws(SimulatorError) {
        let directory = configuration.stateDirectory.map { StateDirectory(path: $0) }
        let contents = if let directory { try directory.open() } else { try StateDirectory.make() }
        let chain = try contents.authority.chainDER()
        rootCertificateDER = chain[2]
        credentials = contents.credentials
        ledger = try Ledger(
            prefix: contents.identity.prefix, directory: directory, purchasesMax: configuration.purchasesMax)
        faults = Faults(seed: configuration.seed ?? .random(in: .min ... .max))
        calls = CallLog()
        signer = TransactionSigner(key: contents.authority.leafKey, x5c: chain)
        forger = Forger(authority: contents.authority, signer: signer)
        let authority = contents.authority
        receipts = ReceiptFormat { () throws(SimulatorError) in
            guard let directory else {
                return try .make(below: authority, keys: ReceiptAuthority.Keys.ofThisProcess.get())
            }
            return try directory.receiptAuthority(below: authority)
        }
        bearer = try BearerToken(contents.credentials)
    }

    // MARK: What the control API does

    /// Sells `request.count` (default 1) purchases. Gives way to other tasks every 50 signatures.
    func sell(_ request: SaleRequest) async throws(ControlError) -> [Sale] {
        let purchases = try ledger.sell(request, count: request.count ?? 1, now: AppleDate.now)
        var sales: [Sale] = []
        sales.reserveCapacity(purchases.count)
        for (index, purchase) in purchases.enumerated() {
            if index % 50 == 49 { await Task.yield() }
            let receipt =
                request.receipts == false
                ? ""
                : try receipt(
                    for: purchase.app, purchase.environment, (request.receiptOf ?? []) + [purchase.transactionId],
                    style: request.receiptStyle)
            sales.append(
                Sale(
                    purchase: purchase,
                    signedTransaction: try sign(purchase, signedDate: request.signedDate),
                    receipt: receipt
                ))
        }
        return sales
    }

    /// A legacy receipt over purchases that were sold before.
    func receipt(_ request: ReceiptRequest) throws(ControlError) -> String {
        try request.validate()
        for (index, id) in request.transactionIds.enumerated() where ledger.purchase(id) == nil {
            throw ControlError(status: 404, field: "transactionIds.\(index)", "no such purchase: \(id)")
        }
        return try receipt(
            for: request.bundleId ?? ledger.bundleId(of: request.app), request.environment ?? .production,
            request.transactionIds, omitsInApp: request.omitInApp ?? false, style: request.receiptStyle)
    }

    /// A signed transaction of the purchase as it is now.
    func sign(_ id: String, signedDate: Int64? = nil) throws(ControlError) -> String {
        guard let purchase = ledger.purchase(id) else {
            throw ControlError(status: 404, field: "id", "no such purchase: \(id)")
        }
        try SaleRequest.checkTime(signedDate, "signedDate")
        return try sign(purchase, signedDate: signedDate)
    }

    func forge(_ request: ForgeryRequest) throws(ControlError) -> (forgery: Forgery, signedTransaction: String) {
        if request.bundleId != nil, request.kind != .wrongBundle {
            throw ControlError(field: "bundleId", "belongs to the kind wrong_bundle")
        }
        if let transactionId = request.transactionId { try SaleRequest.checkId(transactionId, "transactionId") }
        var sale = SaleRequest(
            app: request.app, productId: request.productId ?? "com.example.forged", quantity: request.quantity,
            appAccountToken: request.appAccountToken, environment: request.environment)
        sale.purchaseDate = request.purchaseDate
        sale.signedDate = request.signedDate
        try sale.validate()
        let now = AppleDate.now
        let app = ledger.bundleId(of: request.app)
        let id = if let transactionId = request.transactionId { transactionId } else { try ledger.unusedId() }
        let purchase = sale.purchase(transactionId: id, lineItemId: "", app: app, now: now)
        let forgery = Forgery(transactionId: id, kind: request.kind, app: app, productId: purchase.productId)
        try ledger.record(forgery)
        do {
            let token = try forger.forge(
                request.kind, purchase, signedDate: request.signedDate ?? now,
                bundleId: request.bundleId ?? "\(app).counterfeit")
            return (forgery, token)
        } catch {
            throw ControlError(status: 503, error.description)
        }
    }

    private func sign(_ purchase: Purchase, signedDate: Int64?) throws(ControlError) -> String {
        do {
            return try signer.sign(purchase.payload(signedDate: signedDate ?? AppleDate.now))
        } catch {
            throw ControlError(status: 503, error.description)
        }
    }

    private func receipt(
        for bundleId: String,
        _ environment: StoreEnvironment,
        _ ids: [String],
        omitsInApp: Bool = false,
        style: ReceiptStyle? = nil
    ) throws(ControlError) -> String {
        do {
            let contents = ReceiptContents(
                bundleId: bundleId, environment: environment, createdAt: AppleDate.now, transactionIds: ids,
                omitsInApp: omitsInApp)
            return try receipts.seal(contents, ids.compactMap { ledger.purchase($0) }, style: style ?? .sha256)
        } catch {
            throw ControlError(status: 503, error.description)
        }
    }

    // MARK: What Apple answers

    /// verifyReceipt (apple-facts 5.1, 5.2). Order of the checks: body, signature, environment, shared secret.
    func verifyReceipt(_ body: [UInt8], _ environment: StoreEnvironment) -> AppleAnswer {
        struct Body: Decodable {
            let receiptData: String
            let password: String?
            let excludesOldTransactions: Bool?

            enum CodingKeys: String, CodingKey {
                case receiptData = "receipt-data"
                case password
                case excludesOldTransactions = "exclude-old-transactions"
            }
        }
        guard let request = try? JSONDecoder().decode(Body.self, from: Data(body)) else {
            return .receiptStatus(21002)
        }
        let hash = SHA256.hash(data: Data(request.receiptData.utf8)).prefix(8)
            .map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
        let contents: ReceiptContents
        do {
            contents = try receipts.open(request.receiptData)
        } catch {
            switch error {
            case .malformed: return .receiptStatus(21002, receiptHash: hash)
            case .notAuthentic: return .receiptStatus(21003, receiptHash: hash)
            }
        }
        let shown = Array(contents.transactionIds.prefix(20))
        guard contents.environment == environment else {
            return .receiptStatus(environment == .production ? 21007 : 21008, ids: shown, receiptHash: hash)
        }
        let purchases = contents.transactionIds.compactMap { ledger.purchase($0) }
        guard purchases.count == contents.transactionIds.count else {
            // Sold by another simulator of this state directory since our start: Apple's word for it is 21009.
            return .receiptStatus(21009, ids: shown, receiptHash: hash)
        }
        let app = ledger.registeredApp(bundleId: contents.bundleId)
        let renewable = purchases.filter { $0.type == .autoRenewable }
        if request.password != nil || !renewable.isEmpty,
            request.password != app?.sharedSecret ?? credentials.sharedSecret
        {
            return .receiptStatus(21004, ids: shown, receiptHash: hash)
        }
        var seen: Set<String> = []
        let subscriptions = renewable.map(\.originalTransactionId).filter { seen.insert($0).inserted }
            .flatMap { ledger.chain($0) }
            .filter { $0.app == contents.bundleId && $0.environment == environment }
        let added = subscriptions.map(\.transactionId).filter { !contents.transactionIds.contains($0) }
        let answer = ReceiptAnswer(
            contents: contents,
            purchases: purchases,
            subscriptions: subscriptions,
            latestReceipt: subscriptions.isEmpty
                ? nil : try? receipt(for: contents.bundleId, environment, contents.transactionIds + added),
            appAppleId: app?.appAppleId ?? Self.appAppleId(contents.bundleId),
            excludesOldTransactions: request.excludesOldTransactions ?? false,
            now: AppleDate.now
        )
        return AppleAnswer(status: 200, body: answer.json(), code: 0, transactionIds: shown, receiptHash: hash)
    }

    /// Get Transaction Info (apple-facts 3.3 endpoint 1). Order of the checks: token, shape of the id, existence;
    /// another environment or app is "not found".
    func transactionInfo(
        _ id: String,
        authorization: String?,
        _ environment: StoreEnvironment
    ) -> AppleAnswer {
        let now = AppleDate.now
        guard
            let bundleId = bearer.bundleId(authorization: authorization, nowSeconds: Double(now) / 1000)
        else { return .unauthorized(ids: [String(id.prefix(64))]) }
        guard SaleRequest.isTransactionId(id) else {
            return .apiError(4_000_006, "Invalid transaction id.", ids: [String(id.prefix(64))])
        }
        guard
            let purchase = ledger.purchase(id), purchase.environment == environment, purchase.app == bundleId
        else { return .apiError(4_040_010, "Transaction id not found.", ids: [id]) }
        guard let token = try? sign(purchase, signedDate: now) else {
            return .apiError(5_000_000, "An unknown error occurred.", ids: [id])
        }
        let body = JSONWriter.object(capacity: token.utf8.count + 64) { $0.field("signedTransactionInfo", token) }
        return AppleAnswer(status: 200, body: body, transactionIds: [id])
    }

    /// The answer of Get Transaction Info with the same facts, signed below a root that is not ours.
    func signedElsewhere(_ answer: AppleAnswer) -> AppleAnswer {
        guard answer.status == 200, let id = answer.transactionIds.first, let purchase = ledger.purchase(id),
            let token = try? forger.forge(
                .foreignRoot, purchase, signedDate: AppleDate.now, bundleId: purchase.app)
        else { return answer }
        var forged = answer
        forged.body = JSONWriter.object(capacity: token.utf8.count + 64) { $0.field("signedTransactionInfo", token) }
        return forged
    }

    /// A stable, plausible app id for a bundle id nobody registered: ten digits (FNV-1a).
    private static func appAppleId(_ bundleId: String) -> Int64 {
        let hash = bundleId.utf8.reduce(0xCBF2_9CE4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
        return 1_000_000_000 + Int64(hash % 1_000_000_000)
    }
}

/// Which purchases a receipt shows: the body of `POST /control/receipts`.
package struct ReceiptRequest: ControlBody, Sendable {
    /// Bundle id or registered name.
    package var app: String
    /// Default `Production`. The purchases' own environment is not looked at.
    package var environment: StoreEnvironment?
    /// At most 1,000, in the order wanted in `in_app`; may be empty.
    package var transactionIds: [String]
    /// True: the answer of verifyReceipt has no `in_app` at all.
    package var omitInApp: Bool?
    /// Another bundle id than the app's.
    package var bundleId: String?
    /// Default `sha256`.
    package var receiptStyle: ReceiptStyle?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case app, environment, transactionIds, omitInApp, bundleId, receiptStyle
    }

    package init(app: String, environment: StoreEnvironment? = nil, transactionIds: [String]) {
        self.app = app
        self.environment = environment
        self.transactionIds = transactionIds
    }

    func validate() throws(ControlError) {
        try SaleRequest.check(app, "app")
        if let bundleId { try SaleRequest.check(bundleId, "bundleId") }
        guard transactionIds.count <= SaleRequest.receiptMax else {
            throw ControlError(field: "transactionIds", "must be at most \(SaleRequest.receiptMax)")
        }
    }
}
