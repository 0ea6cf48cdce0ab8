import Crypto
import Foundation

/// The store itself, without HTTP: sells, signs, refunds, and answers for Apple.
struct Storefront: Sendable {
    let rootCertificateDER: [UInt8]
    let credentials: Credentials
    let ledger: StoreLedger
    let faults: Faults
    let calls: CallLog
    let limits = RateLimits()
    let responder = Responder()

    private let authority: CertificateAuthority
    private let signing: SigningChain
    private let forger: Forger
    private let receipts: ReceiptFormat
    private let bearer: BearerTokenCheck

    init(_ configuration: SimulatorConfiguration) throws(SimulatorError) {
        let directory = configuration.stateDirectory.map { StateDirectory(path: $0) }
        let contents = if let directory { try directory.open() } else { try StateDirectory.make() }
        let chain = try contents.authority.chainDER()
        rootCertificateDER = chain[2]
        credentials = contents.credentials
        ledger = try StoreLedger(
            prefix: contents.identity.prefix, directory: directory, purchasesMax: configuration.purchasesMax,
            notificationURL: configuration.notificationURL, seed: configuration.seed ?? .random(in: .min ... .max))
        faults = Faults(seed: configuration.seed ?? .random(in: .min ... .max))
        calls = CallLog()
        let signer = TransactionSigner(key: contents.authority.leafKey, x5c: chain)
        signing = SigningChain(signer)
        forger = Forger(authority: contents.authority, signer: signer)
        let authority = contents.authority
        self.authority = authority
        receipts = ReceiptFormat { () throws(SimulatorError) in
            guard let directory else {
                return try .make(below: authority, keys: ReceiptSigner.Keys.ofThisProcess.get())
            }
            return try directory.receiptAuthority(below: authority)
        }
        bearer = try BearerTokenCheck(contents.credentials)
    }

    /// The store's clock.
    var clock: StoreClock { ledger.clock }

    private var signer: TransactionSigner { signing.signer }

    /// Moves the clock, at most to the end of the certificates; returns the store's time.
    @discardableResult
    func advance(_ request: ClockRequest) throws(ControlError) -> Int64 {
        try ledger.advance(request, end: authority.leafEnd)
    }

    func sign(_ payload: [UInt8]) throws(SimulatorError) -> String { try signer.sign(payload) }

    /// Shows certificates that name their responder from now on: only the listener knows the responder's address.
    /// Receipts and forgeries keep certificates that name none.
    func nameResponder(_ url: String) throws(SimulatorError) {
        let named = try authority.naming(responder: url)
        responder.speak(for: named)
        signing.replace(try TransactionSigner(named))
    }

    // MARK: What the control API does

    /// Adds a fault of notifications.
    func add(_ fault: NotificationFaultRequest) throws(ControlError) -> Int {
        var fault = fault
        fault.app = fault.app.map { ledger.bundleId(of: $0) }
        return try ledger.notificationFaults.add(fault)
    }

    /// Sells `request.count` (default 1) purchases. Gives way to other tasks every 50 signatures.
    func sell(_ request: SaleRequest) async throws(ControlError) -> [Sale] {
        let sold = try ledger.sell(request, count: request.count ?? 1)
        var sales: [Sale] = []
        sales.reserveCapacity(sold.count)
        for (index, (purchase, family)) in sold.enumerated() {
            if index % 50 == 49 { await Task.yield() }
            var sale = try proofs(of: purchase, request, receiptOf: request.receiptOf ?? [])
            for share in family { sale.family.append(try proofs(of: share, request)) }
            sales.append(sale)
        }
        return sales
    }

    private func proofs(
        of purchase: Purchase,
        _ request: SaleRequest,
        receiptOf earlier: [String] = []
    ) throws(ControlError) -> Sale {
        Sale(
            purchase: purchase,
            signedTransaction: try sign(purchase, signedDate: request.signedDate),
            receipt: request.receipts == false
                ? ""
                : try receipt(
                    for: purchase.app, purchase.environment, earlier + [purchase.transactionId],
                    style: request.receiptStyle))
    }

    /// Holds a notification about a purchase as it is now.
    func hold(_ request: NotificationRequest) throws(ControlError) -> (HeldNotification, signedPayload: String) {
        try request.validate()
        let now = clock.now
        let signedDate = request.signedDate ?? now
        let app = ledger.bundleId(of: request.app)
        let environment = request.environment ?? .production
        let (purchase, subscription) = try ledger.read { store throws(ControlError) -> (Purchase?, Subscription?) in
            guard let id = request.transactionId else { return (nil, nil) }
            guard let position = store.positions[id], store.purchases[position].app == app,
                store.purchases[position].environment == environment
            else { throw ControlError(status: 404, field: "transactionId", "no such purchase: \(id)") }
            let purchase = store.purchases[position]
            return (purchase, store.subscription(purchase.originalTransactionId, now: .max))
        }
        let notification = HeldNotification(
            notificationUUID: UUID().uuidString.lowercased(), app: app, environment: environment,
            notificationType: request.notificationType, subtype: request.subtype, signedDate: signedDate,
            customer: purchase?.account,
            transaction: purchase.map { String(decoding: $0.payload(signedDate: signedDate), as: UTF8.self) },
            renewal: subscription.map {
                String(decoding: $0.renewalPayload(signedDate: signedDate, now: now), as: UTF8.self)
            },
            status: subscription?.state(now: now).rawValue,
            consumptionRequestReason: request.consumptionRequestReason, sendAttempts: request.sendAttempts ?? [])
        let held = try ledger.hold(notification, isSent: request.send == true)
        return (held, try sign(held))
    }

    /// The JSON that is sent to the app's server.
    func body(of notification: HeldNotification) throws(ControlError) -> [UInt8] {
        guard let content = notification.v1 else {
            let token = try sign(notification)
            return JSONWriter.object(capacity: token.utf8.count + 64) { $0.field("signedPayload", token) }
        }
        let ids = content.purchases.map(\.transactionId)
        return content.body(
            app: notification.app, environment: notification.environment, appAppleId: appAppleId(of: notification),
            password: ledger.registeredApp(bundleId: notification.app)?.sharedSecret ?? credentials.sharedSecret,
            latestReceipt: try receipt(for: notification.app, notification.environment, ids))
    }

    /// The app's id in the App Store; in the sandbox only an id that was registered.
    private func appAppleId(of notification: HeldNotification) -> Int64? {
        let registered = ledger.registeredApp(bundleId: notification.app)?.appAppleId
        return notification.environment == .production
            ? registered ?? Self.appAppleId(notification.app) : registered
    }

    private func sign(_ notification: HeldNotification) throws(ControlError) -> String {
        do throws(SimulatorError) {
            let payload = try notification.payload(appAppleId: appAppleId(of: notification)) {
                payload throws(SimulatorError) in try signer.sign(payload)
            }
            return try signer.sign(payload)
        } catch {
            throw ControlError(status: 503, error.description)
        }
    }

    /// A legacy receipt over purchases that were sold before.
    func receipt(_ request: ReceiptRequest) throws(ControlError) -> String {
        try request.validate()
        for (index, id) in request.transactionIds.enumerated() where ledger.purchase(id) == nil {
            throw ControlError(status: 404, field: "transactionIds.\(index)", "no such purchase: \(id)")
        }
        return try receipt(
            for: request.bundleId ?? ledger.bundleId(of: request.app), request.environment ?? .production,
            request.transactionIds, omitsInApp: request.omitInApp ?? false, paddingBytes: request.paddingBytes ?? 0,
            style: request.receiptStyle)
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
        let now = clock.now
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
            return try signer.sign(purchase.payload(signedDate: signedDate ?? clock.now))
        } catch {
            throw ControlError(status: 503, error.description)
        }
    }

    private func receipt(
        for bundleId: String,
        _ environment: StoreEnvironment,
        _ ids: [String],
        omitsInApp: Bool = false,
        paddingBytes: Int = 0,
        style: ReceiptStyle? = nil
    ) throws(ControlError) -> String {
        do {
            let contents = ReceiptContents(
                bundleId: bundleId, environment: environment, createdAt: clock.now, transactionIds: ids,
                omitsInApp: omitsInApp, paddingBytes: paddingBytes)
            return try receipts.seal(contents, ids.compactMap { ledger.purchase($0) }, style: style ?? .sha256)
        } catch {
            throw ControlError(status: 503, error.description)
        }
    }

    // MARK: What Apple answers

    /// verifyReceipt (AppleFacts 5.1, 5.2). Order of the checks: body, signature, environment, shared secret.
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
            // Another simulator of this state directory sold it since our start: Apple's status for that is 21009.
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
        let answer = VerifyReceiptAnswer(
            contents: contents,
            purchases: purchases,
            subscriptions: subscriptions,
            renewals: ledger.read { store in
                Dictionary(
                    uniqueKeysWithValues: seen.map { ($0, store.subscription($0, now: .max)?.renewal ?? Renewal()) })
            },
            latestReceipt: subscriptions.isEmpty
                ? nil : try? receipt(for: contents.bundleId, environment, contents.transactionIds + added),
            appAppleId: app?.appAppleId ?? Self.appAppleId(contents.bundleId),
            excludesOldTransactions: request.excludesOldTransactions ?? false,
            now: clock.now
        )
        return AppleAnswer(status: 200, body: answer.json(), code: 0, transactionIds: shown, receiptHash: hash)
    }

    /// Answers a call of the App Store Server API: checks the token and the rate limit, then asks ``ServerAPI``.
    ///
    /// - Parameter foreign: sign below a root that is not ours.
    func answer(_ call: AppleCall, foreign: Bool) -> AppleAnswer {
        let now = clock.now
        guard
            let app = bearer.bundleId(
                authorization: call.authorization, nowSeconds: Double(StoreClock.machine) / 1000,
                aheadSeconds: Double(clock.offsetMilliseconds) / 1000)
        else { return .unauthorized(ids: call.ids) }
        if let next = limits.refusal(ledger.settings.rateLimits, call.service, call.environment, app: app, now: now) {
            var answer = AppleAnswer.refused(.rateLimitExceeded, ids: call.ids)
            // Apple's header is a moment in milliseconds, not seconds to wait (AppleFacts 3.8).
            answer.retryAfter = String(next)
            return answer
        }
        guard let signer = foreign ? try? forger.signer(for: .foreignRoot) : signer else {
            return .refused(.generalInternal, ids: call.ids)
        }
        return ServerAPI(ledger: ledger, signer: signer, call: call, app: app, now: now).answer()
    }

    /// A stable, plausible app id for a bundle id nobody registered: ten digits (FNV-1a).
    static func appAppleId(_ bundleId: String) -> Int64 {
        let hash = bundleId.utf8.reduce(0xCBF2_9CE4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
        return 1_000_000_000 + Int64(hash % 1_000_000_000)
    }
}
