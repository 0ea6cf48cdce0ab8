import AppStore
import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
package import Logging
import Metrics
import NIOCore
import Postgres
import Purchases
package import Service
package import Settings
package import WorkQueue

/// `POST /v1/receipts`, `POST /v1/receipts/batch` and `GET /v1/receipts/{id}`.
///
/// An accepted receipt is a committed one: ingest answers after the row is stored, and publishes the receipt's id to
/// RabbitMQ without waiting for it. A post from a reachable client with something attributable never fails here
/// (S3-33); a worker judges it later.
package struct ReceiptRoutes: Sendable {
    /// After this time one of the user's questions may have found a purchase; the day ends by UTC.
    private static let questionsRetryAfterSeconds = 3600

    /// A purchase younger than this, in seconds, counts as new: its buyer may be waiting for it.
    private static let newFor: TimeInterval = 86_400
    /// The most purchases of one receipt that ingest looks up.
    private static let newMax = 100

    private let ledger: Ledger
    private let workQueue: WorkQueue
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let users: UserRegister
    private let quota: UserQuota
    private let shares = UserShares.receiptsAtOnce
    private let records: RecordApps
    private let derivedTokens: DerivedTokens
    private let longPoll: LongPoll
    private let bodies: BodyReader
    private let logger: Logger
    private let security: SecurityLog
    private let stored = Counter(label: "makegood_receipts_stored_total")
    private let repeated = Counter(label: "makegood_receipts_repeated_total")

    package init(
        ledger: Ledger, workQueue: WorkQueue, configuration: ConfigurationHolder, authenticator: Authenticator,
        longPoll: LongPoll,
        bodies: BodyReader, logger: Logger, security: SecurityLog
    ) {
        self.ledger = ledger
        self.workQueue = workQueue
        self.configuration = configuration
        self.authenticator = authenticator
        users = UserRegister(ledger: ledger)
        quota = UserQuota(ledger: ledger)
        records = RecordApps(ledger: ledger)
        derivedTokens = DerivedTokens(ledger: ledger)
        self.longPoll = longPoll
        self.bodies = bodies
        self.logger = logger
        self.security = security
    }

    package func add(to router: some RouteTable) {
        router.serve("/v1/receipts", [.post: Endpoint("wait", storesPurchases: true) { try await post($0, $1) }])
        router.serve(
            "/v1/receipts/batch", [.post: Endpoint("wait", storesPurchases: true) { try await postBatch($0, $1) }])
        router.serve("/v1/receipts/:id", [.get: Endpoint("wait") { try await get($0, $1) }])
    }

    // MARK: Routes

    private func post(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let (wait, ignored) = Self.wait(request)
        let configuration = configuration.current
        let taken = try await bodies.withBody(of: request, context, from: caller) { body in
            var posted = try SubmissionRequest(
                body: body, caller: caller, apps: configuration.appIDs, placeholders: configuration.placeholders)
            posted.ignored += ignored
            return try await take([.success(posted)], configuration)
        }
        guard let answer = try await answers(to: taken, configuration, wait).first else { throw Problem.internalError }
        let (json, isEnded) = try answer.get()
        return Response(json: json, status: isEnded ? .ok : .accepted)
    }

    /// Answers each entry in order, with its own status: an invalid entry refuses none of the others. Only an error
    /// that keeps all entries from being stored is an answer to the whole batch.
    private func postBatch(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let (wait, _) = Self.wait(request)
        let configuration = configuration.current
        let taken = try await bodies.withBody(of: request, context, from: caller) { body in
            let posted = try SubmissionBatch(
                body: body, caller: caller, apps: configuration.appIDs, placeholders: configuration.placeholders
            ).entries
            // All invalid entries together cost as much as one request.
            let wrong = posted.count { if case .failure = $0 { true } else { false } }
            try authenticator.count(posted.count - wrong + min(wrong, 1), of: caller)
            return try await take(posted, configuration)
        }
        security.note(
            taken.compactMap { if case .failure(let problem) = $0 { problem.securityEvent } else { nil } })
        let answers = try await self.answers(to: taken, configuration, wait).map { answer in
            switch answer {
            case .success(let (json, isEnded)):
                JSONValue.object([.init("status", .integer(isEnded ? 200 : 202))] + json.members)
            case .failure(let problem): problem.document
            }
        }
        return Response(json: .object([.init("receipts", .array(answers))]))
    }

    private func get(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let wait = try WaitParameter(request).duration
        guard let id = context.parameters.get("id").flatMap(UUID.init(uuidString:)),
            var view = try await ledger.view(id)
        else { throw Problem.notFound }
        // The post of a token that names nobody has neither a user nor an order.
        let isOfNobody =
            view.userID == nil && view.orderID == nil && caller.apps.contains(view.appID)
            && configuration.current.placeholders.contains(caller.userID)
        if !isOfNobody {
            guard
                try await caller.mayRead(
                    appID: view.appID, userID: view.userID, configuration.current.userKeys, ledger)
            else { throw Problem.notYours }
        }
        if view.state == .received, wait > .zero { view = await waited(view, wait) ?? view }
        let current = configuration.current
        return Response(
            json: ReceiptAnswer(
                view, finishing: current.finishing(view.appID), hints: await .hints(for: [view], current, users)
            ).json)
    }

    // MARK: Steps

    /// How long a post waits for its verdict, and the query parameters that no post can use, as `?platform`. A `wait`
    /// that cannot be read, or stands twice, is no wait.
    private static func wait(_ request: Request) -> (Duration, ignored: [String]) {
        let names = request.uri.queryParameters.map { String($0.key) }.filter { !$0.isEmpty }
        let waits = names.count { $0.isSameText(as: "wait") }
        let wait = waits == 1 ? try? WaitParameter(request).duration : nil
        let others = names.filter { wait == nil || !$0.isSameText(as: "wait") }
        return (wait ?? .zero, others.prefix(IntakeFields.unknownMax).map { "?" + $0 })
    }

    /// A stored post, without its proof: the client may wait for long, and a proof may have megabytes.
    private struct StoredPost {
        var view: ReceiptView
        let transactionID: String?
        let ignored: [String]
        let disregarded: [String]
        let repaired: [FieldRepair]

        init(_ view: ReceiptView, _ request: SubmissionRequest) {
            self.view = view
            transactionID = request.submission.transactionID
            ignored = request.ignored
            disregarded = request.disregarded
            repaired = request.repaired
        }
    }

    private typealias Taken = Result<StoredPost, Problem>
    private typealias Accepted = (place: Int, request: SubmissionRequest, submission: Submission)

    /// Stores all valid entries in one statement.
    ///
    /// - Throws: if nothing can be stored now.
    private func take(
        _ posted: [Result<SubmissionRequest, Problem>], _ configuration: Configuration
    ) async throws -> [Taken] {
        let keys = configuration.userKeys
        var taken: [Taken] = posted.map { _ in .failure(.internalError) }
        var accepted: [Accepted] = []
        for (place, entry) in posted.enumerated() {
            do throws(Problem) {
                let request = try entry.get()
                // From here on only the register knows the user's id.
                var submission = keys?.protecting(request.submission) ?? request.submission
                if let policy = configuration.apps[submission.appID]?.policy {
                    submission.lane = await lane(of: submission, by: policy)
                }
                if let user = submission.user {
                    submission.waitsForTurn = !shares.take(of: user.key, app: user.appID, at: .now)
                }
                if submission.declared?.isOfPlaceholder == true {
                    Counter(label: "makegood_placeholder_posts_total", dimensions: [("app", submission.appID)])
                        .increment()
                }
                accepted.append((place, request, submission))
            } catch {
                taken[place] = .failure(error)
            }
        }
        if let keys {
            for (_, request, submission) in accepted {
                guard let userID = request.submission.userID, let key = submission.userID else { continue }
                try await users.enter(userID, key: key, app: submission.appID, keys)
            }
        }
        for (_, request, submission) in accepted {
            guard let derivation = configuration.apps[submission.appID]?.accountTokens,
                let userID = request.submission.userID, let user = submission.user
            else { continue }
            try await derivedTokens.register(derivation.token(of: userID), of: user)
        }
        accepted = try await withinLimits(accepted, configuration.userLimits, &taken)
        let stored = try await store(accepted.map(\.submission), linesMax: configuration.userLimits.lines)
        for app in Set(accepted.filter { $0.submission.showsRecordOfUser }.map { $0.submission.appID }) {
            try? await records.note(app)
        }
        for (entry, result) in zip(accepted, stored) {
            taken[entry.place] = result.map { StoredPost($0, entry.request) }
        }
        return taken
    }

    /// The answer to each post in its place, after a wait for all of them at the same time.
    private func answers(
        to taken: [Taken], _ configuration: Configuration, _ wait: Duration
    ) async throws -> [Result<(json: JSONValue, isEnded: Bool), Problem>] {
        let views = try await waited(taken.compactMap { try? $0.get().view }, wait)
        let hints = await OwnerHints.hints(for: views, configuration, users)
        var latest = views[...]
        return taken.map { post in
            post.map { post in
                var view = latest.popFirst() ?? post.view
                // The answer is about the transaction that this post names, even if another post named another one
                // since.
                view.transactionID = post.transactionID ?? view.transactionID
                let answer = ReceiptAnswer(
                    view, finishing: configuration.finishing(view.appID), hints: hints, ignored: post.ignored,
                    disregarded: post.disregarded, repaired: post.repaired)
                return (answer.json, view.state.isEnded)
            }
        }
    }

    /// The entries without new receipts of users who have reached a limit; those are answered 429.
    private func withinLimits(
        _ accepted: [Accepted], _ limits: UserLimits, _ taken: inout [Taken]
    ) async throws -> [Accepted] {
        var reached: [UserName: Limit] = [:]
        for user in Set(accepted.compactMap(\.submission.user)) {
            reached[user] = try await quota.limit(of: user, limits)
        }
        guard !reached.isEmpty else { return accepted }
        var allowed: [Accepted] = []
        for entry in accepted {
            if let limit = entry.submission.user.flatMap({ reached[$0] }),
                try await ledger.view(entry.submission.receiptID) == nil
            {
                taken[entry.place] = .failure(.tooManyReceipts(limit))
            } else {
                allowed.append(entry)
            }
        }
        return allowed
    }

    /// The lane in which the receipt waits first. For a big receipt ingest asks the database whether it holds purchases
    /// that are new here: the purchase that the post names, and recent purchases in the receipt, which is not verified
    /// yet. A failed question refuses no post.
    private func lane(of submission: Submission, by policy: AppPolicy) async -> Lane {
        let lane = policy.lane(of: submission.proof, isAwaited: submission.orderID != nil)
        guard lane == .bulk, case .receipt(let base64) = submission.proof else { return lane }
        // A batch may hold megabytes of receipts, which would keep other requests from this thread.
        await Task.yield()
        var ids = AppReceipt.transactionIds(
            unverified: base64, since: Date(timeIntervalSinceNow: -Self.newFor), max: Self.newMax)
        if let named = submission.transactionID { ids.append(named) }
        guard !ids.isEmpty, let areKnown = try? await ledger.run(Statements.areKnownTransactions, ids).first, !areKnown
        else { return lane }
        return policy.lane(of: submission.proof, isAwaited: true)
    }

    /// Stores the submissions; the rows are committed on return. Ingest publishes the ids of new receipts to RabbitMQ,
    /// except of those that wait for their turn. A known open receipt also takes this post's statements, and a known
    /// held or parked one becomes due (P5). A bare id makes workers ask Apple, so ingest refuses a user who asks for
    /// many ids of other users.
    private func store(_ submissions: [Submission], linesMax: Int) async throws -> [Result<ReceiptView, Problem>] {
        let rows = try await ledger.store(submissions)
        if rows.contains(where: { if case .new = $0 { true } else { false } }) {
            CrashPoint.afterCommitBeforePublish.reached()
        }
        var waiting: [UserName: Int] = [:]
        for (submission, row) in zip(submissions, rows) {
            guard case .new(let row) = row else { continue }
            self.stored.increment()
            if let user = submission.user { quota.note(1, of: user) }
            if let trace = TraceContext.current {
                logger.log(level: trace.level, "receipt stored", metadata: LogKeys.receipt(row.id))
            }
            if submission.waitsForTurn, let user = submission.user {
                waiting[user, default: 0] += 1
            } else {
                workQueue.publish(Pointer(receiptID: row.id, attempt: 0), lane: submission.lane)
            }
        }
        for (user, count) in waiting { security.note(.limit(.userReceiptsAtOnce), count: count, user: user.key) }
        var known = try await known(zip(submissions, rows).filter { $1 == .known }.map(\.0), linesMax: linesMax)[...]
        return zip(submissions, rows).map { submission, row in
            switch row {
            case .known: return known.popFirst() ?? .failure(.internalError)
            case .refused:
                return .failure(.tooManyQuestions(retryAfterSeconds: Self.questionsRetryAfterSeconds))
            case .new(let row):
                return .success(
                    ReceiptView(
                        id: row.id, appID: submission.appID, userID: submission.userID, kind: submission.proof.kind,
                        state: .received, reason: nil, orderID: submission.orderID,
                        transactionID: submission.transactionID,
                        receivedAt: row.receivedAt, dueAt: row.dueAt, transactions: []))
            }
        }
    }

    /// The existing rows of these submissions, in order. Several submissions of one receipt are handled in order.
    private func known(_ submissions: [Submission], linesMax: Int) async throws -> [Result<ReceiptView, Problem>] {
        // Most posts are new: they skip the cost of a task group.
        guard !submissions.isEmpty else { return [] }
        return try await withThrowingTaskGroup(of: [(Int, Result<ReceiptView, Problem>)].self) { group in
            for places in Dictionary(grouping: submissions.indices, by: { submissions[$0].receiptID }).values {
                group.addTask {
                    var views: [(Int, Result<ReceiptView, Problem>)] = []
                    for place in places {
                        views.append((place, try await known(submissions[place], linesMax: linesMax)))
                    }
                    return views
                }
            }
            return try await group.reduce(
                into: Array(repeating: .failure(.internalError), count: submissions.count)
            ) { views, some in
                for (place, view) in some { views[place] = view }
            }
        }
    }

    /// The existing row of this submission.
    private func known(
        _ submission: Submission, linesMax: Int
    ) async throws(LedgerError) -> Result<ReceiptView, Problem> {
        repeated.increment()
        let id = submission.receiptID
        // The trace refuses no post, and no post waits for it.
        Task { try? await ledger.countRepeat(id) }
        guard var view = try await ledger.view(id) else {
            // Rows are never deleted. A row that was there a moment ago and is gone means that the database went back
            // in time.
            throw .unavailable(.unavailable)
        }
        if view.state.isEnded, view.transactions.contains(where: { $0.isOwn == false }) {
            // The purchase was another user's when it was judged; a decision, a merge or a policy may have made it the
            // poster's.
            let policy = configuration.current.apps[submission.appID]?.policy
            let claim = Statements.RepeatedClaim(
                receiptID: id, payload: submission.proof.payload, moves: policy.map { $0.transfer != .keep } ?? false)
            _ = try await ledger.run(Statements.reopenClaim, claim)
            view = try await ledger.view(id) ?? view
        }
        guard submission.saysMore(than: view) else { return .success(view) }
        switch try await ledger.say(submission, linesMax: linesMax) {
        case .same: return .success(view)
        case .taken: return .success(try await ledger.view(id) ?? view)
        // An ended receipt needs no further statements.
        case .full: return view.state.isEnded ? .success(view) : .failure(.tooManyLines)
        }
    }

    /// The receipts after a wait for all of them at the same time.
    private func waited(_ views: [ReceiptView], _ wait: Duration) async throws -> [ReceiptView] {
        guard wait > .zero, views.contains(where: { $0.state == .received }) else { return views }
        return await withTaskGroup(of: (Int, ReceiptView?).self) { group in
            for (place, view) in views.enumerated() where view.state == .received {
                group.addTask { (place, await waited(view, wait)) }
            }
            var latest = views
            for await (place, view) in group {
                if let view { latest[place] = view }
            }
            return latest
        }
    }

    /// The receipt after a wait; nil: no newer state is known.
    private func waited(_ view: ReceiptView, _ wait: Duration) async -> ReceiptView? {
        await longPoll.latest(view.id, of: view.userID, upTo: wait, isOver: { $0.state != .received }) {
            try await ledger.view(view.id)
        }
    }
}

/// `?wait=S`: the seconds to wait, 0 without it, at most `LongPoll.waitMax`.
struct WaitParameter {
    let duration: Duration

    init(_ request: Request) throws(Problem) {
        guard let text = request.parameter("wait") else {
            duration = .zero
            return
        }
        let isDecimal = text.utf8.allSatisfy {
            (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) || $0 == UInt8(ascii: ".")
        }
        guard isDecimal, let seconds = Double(text) else {
            throw .badParameter("wait", "a number of seconds from 0 to \(LongPoll.waitMax.components.seconds)")
        }
        duration = min(.seconds(min(seconds, 3600)), LongPoll.waitMax)
    }
}

extension Submission {
    /// The user of the submission; nil where only its order says whose it is.
    fileprivate var user: UserName? { userID.map { UserName(appID: appID, key: $0) } }

    /// Whether the receipt's row may need this post's statements: for an ended receipt only another order or
    /// transaction counts.
    fileprivate func saysMore(than view: ReceiptView) -> Bool {
        if !view.state.isEnded { return true }
        if let orderID, !orderID.isSameText(as: view.orderID) { return true }
        if let transactionID, !transactionID.isSameText(as: view.transactionID) { return true }
        return false
    }
}

extension Configuration {
    func finishing(_ appID: String) -> FinishPolicy { apps[appID]?.finishing ?? .held }
}
