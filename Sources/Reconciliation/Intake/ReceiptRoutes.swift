import Foundation
import HTTPTypes
package import Hummingbird
import Metrics
import NIOCore
import Postgres
import Purchases

/// `POST /v1/receipts` and `GET /v1/receipts/{id}`.
///
/// Accept means committed: the answer leaves after the row is stored, and the workers' bell rings beside it. A
/// reachable client with something attributable never fails here (S3-33); what it is worth is judged later.
package struct ReceiptRoutes: Sendable {
    /// Bare transaction ids of one user that may lead nowhere in 24 hours.
    package static let fruitlessQuestionsMax = 20
    /// When the oldest of them may have left the window; nobody is told the exact time.
    private static let questionsRetryAfterSeconds = 3600

    private let ledger: Ledger
    private let doorbell: Doorbell
    private let configuration: ConfigurationHolder
    private let door: Door
    private let users: UserRegister
    private let longPoll: LongPoll
    private let bodies: BodyReader
    private let stored = Counter(label: "makegood_receipts_stored_total")
    private let repeated = Counter(label: "makegood_receipts_repeated_total")

    package init(
        ledger: Ledger, doorbell: Doorbell, configuration: ConfigurationHolder, door: Door, longPoll: LongPoll,
        bodies: BodyReader
    ) {
        self.ledger = ledger
        self.doorbell = doorbell
        self.configuration = configuration
        self.door = door
        users = UserRegister(ledger: ledger)
        self.longPoll = longPoll
        self.bodies = bodies
    }

    package func add(to router: Router<HTTPContext>) {
        router.serve("/v1/receipts", [.post: { try await post($0, $1) }])
        router.serve("/v1/receipts/:id", [.get: { try await get($0, $1) }])
    }

    // MARK: Routes

    private func post(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await door.admit(request.headers)
        try caller.require(.intake)
        let wait = try WaitParameter(request).duration
        let configuration = configuration.current
        let posted = try await bodies.withBody(of: request, context) { body in
            try SubmissionRequest(body: body, caller: caller, apps: configuration.appIDs)
        }
        let keys = configuration.userKeys
        // From here on nothing but the register knows the user's id.
        var submission = keys?.protecting(posted.submission) ?? posted.submission
        if let policy = configuration.apps[submission.appID]?.policy {
            submission.lane = policy.lane(of: submission.proof.kind)
        }
        let id = submission.receiptID
        try await limitQuestions(submission, id)
        if let keys, let userID = posted.submission.userID, let key = submission.userID {
            try await users.enter(userID, key: key, app: submission.appID, keys)
        }
        var view = try await store(submission, id)
        if view.state == .received, wait > .zero { view = await waited(id, wait) ?? view }
        let answer = ReceiptAnswer(view, finishHeld: configuration.finishHeld(view.appID), ignored: posted.ignored)
        return Response(json: answer.json, status: view.state.isEnded ? .ok : .accepted)
    }

    private func get(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await door.admit(request.headers)
        try caller.require(.intake)
        let wait = try WaitParameter(request).duration
        guard let id = context.parameters.get("id").flatMap(UUID.init(uuidString:)),
            var view = try await ledger.view(id),
            caller.mayRead(view, configuration.current.userKeys)
        else { throw Problem.notFound }
        if view.state == .received, wait > .zero { view = await waited(id, wait) ?? view }
        return Response(json: ReceiptAnswer(view, finishHeld: configuration.current.finishHeld(view.appID)).json)
    }

    // MARK: Steps

    /// The row is committed when this returns. New: its bell rings. Known: a held or parked one becomes due (P5).
    private func store(_ submission: Submission, _ id: UUID) async throws(LedgerError) -> ReceiptView {
        if let row = try await ledger.store(submission) {
            stored.increment()
            CrashPoint.afterCommitBeforePublish.reached()
            doorbell.ring(Pointer(receiptID: id, attempt: 0), lane: submission.lane)
            return ReceiptView(
                id: id, appID: submission.appID, userID: submission.userID, kind: submission.proof.kind,
                state: .received, reason: nil, transactionID: submission.transactionID, receivedAt: row.receivedAt,
                dueAt: row.dueAt, transactions: [])
        }
        repeated.increment()
        guard let view = try await ledger.view(id) else {
            // Rows are never deleted; what was there a moment ago and is not is a database gone back in time.
            throw .unavailable(.unavailable)
        }
        if view.state == .held || view.state == .parked {
            // Only an invitation: the scheduler comes back by itself.
            _ = try? await ledger.run(Statements.nudge, [id])
        }
        return view
    }

    /// The receipt after a wait; nil: as it was.
    private func waited(_ id: UUID, _ wait: Duration) async -> ReceiptView? {
        await longPoll.latest(id, upTo: wait, isOver: { $0.state != .received }) { try await ledger.view(id) }
    }

    /// A bare id is a question to Apple: a user who asks for many that are not his is stopped.
    private func limitQuestions(_ submission: Submission, _ id: UUID) async throws {
        guard submission.proof == .identifier, !submission.isVouched, let userID = submission.userID else { return }
        let count =
            try await ledger.run(
                Statements.countFruitlessQuestions, (appID: submission.appID, userID: userID)
            ).first ?? 0
        guard count >= Self.fruitlessQuestionsMax else { return }
        // The same question again is never an error.
        if try await ledger.view(id) != nil { return }
        throw Problem.tooManyQuestions(retryAfterSeconds: Self.questionsRetryAfterSeconds)
    }
}

/// `?wait=S`: seconds, 0 without it, at most `LongPoll.waitMax`.
struct WaitParameter {
    let duration: Duration

    init(_ request: Request) throws(Problem) {
        guard let text = request.uri.queryParameters["wait"] else {
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

extension Configuration {
    func finishHeld(_ appID: String) -> Bool { apps[appID]?.finishHeld ?? true }
}

extension Response {
    init(json: JSONValue, status: HTTPResponse.Status = .ok) {
        self.init(
            status: status, headers: [.contentType: "application/json"],
            body: .init(byteBuffer: ByteBuffer(bytes: json.bytes)))
    }
}
