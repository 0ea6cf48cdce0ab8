import Encoding
package import Foundation
package import Postgres
package import Purchases

// What Apple was asked before. These statements limit how many of our calls to Apple a user can cause.
extension Statements {
    /// One bare id that no trusted backend vouches for.
    package struct BareID: Sendable {
        package let receiptID: UUID
        package let appID: String
        package let transactionID: String
        /// A day has gone by since it was posted.
        package let isOld: Bool

        package init(receiptID: UUID, appID: String, transactionID: String, isOld: Bool) {
            self.receiptID = receiptID
            self.appID = appID
            self.transactionID = transactionID
            self.isOld = isOld
        }
    }

    /// Apple's answers about one bare id: this many in all, and then one a day.
    package static let bareIDAnswersMax = 3
    private static let bareIDAnswers = "bare_id_answers"

    package typealias KnownBareID = (stored: Transaction?, isGranted: Bool, mayBeAsked: Bool)

    /// What is stored of a bare id's transaction, from posts of any user, and whether Apple may be asked about it. Apple may
    /// be asked three times in all, and once a day when the receipt is a day old and a post or a person makes it due
    /// again. The scheduler drops the count of Apple's answers after thirty days without another answer. Key look-ups
    /// only.
    package static let knownBareID = Statement<BareID, KnownBareID>(
        "asked.known_bare_id",
        """
        select exists (select from grants where transaction_id = $3),
          a.of_all < \(bareIDAnswersMax) or $4 and a.of_today = 0, t.*
        from (
          select coalesce(max(n) filter (where day = '-infinity'), 0) as of_all,
            count(*) filter (where day > '-infinity') as of_today
          from limit_places
          where app_id = $2 and limit_name = '\(bareIDAnswers)' and holder = $1
            and day in ('-infinity', (now() at time zone 'UTC')::date)) a
        left join lateral (
          select \(storedFacts) from transactions where transaction_id = $3 and app_id = $2 offset 0) t on true
        """,
        bind: { [.text($0.receiptID.text), .text($0.appID), .text($0.transactionID), .bool($0.isOld)] },
        read: { row throws(PostgresError) in
            (stored: try row.transaction(from: 2), isGranted: try row.bool(0), mayBeAsked: try row.bool(1))
        })

    /// Counts an answer of Apple's about a bare id.
    package static let noteAnswer = Statement<BareID, Void>(
        "asked.note_answer",
        """
        select case
          when take_limit_place($2, '\(bareIDAnswers)', $1, '-infinity', gen_random_uuid()::text, \(bareIDAnswersMax)) then true
          else take_limit_place($2, '\(bareIDAnswers)', $1, (now() at time zone 'UTC')::date, 'again', 1) end
        """,
        bind: { [.text($0.receiptID.text), .text($0.appID)] })

    package struct GrantedQuestion: Sendable {
        package let appID: String
        package let transactionID: String
        package let userID: String

        package init(appID: String, transactionID: String, userID: String) {
            self.appID = appID
            self.transactionID = transactionID
            self.userID = userID
        }
    }

    /// Whether Apple may be asked once more about a purchase that its owner shows again: once a UTC day, so that a
    /// refund is detected, and so that repeated posts of one proof cause no more calls. Apple is not asked for a post
    /// of another user.
    package static let mayAskOfGranted = Statement<GrantedQuestion, Bool>(
        "asked.may_ask_of_granted",
        """
        select case when exists (select from grants where transaction_id = $2 and user_id = $3)
          then take_limit_place($1, 'granted_answers', encode(sha256(convert_to($3 || ' ' || $2, 'UTF8')), 'hex'),
            (now() at time zone 'UTC')::date, gen_random_uuid()::text, 1) else false end
        """,
        bind: { [.text($0.appID), .text($0.transactionID), .text($0.userID)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    package struct AnswerCount: Sendable {
        package let receiptID: UUID
        /// verifyReceipt's `status`, or the API's `errorCode`.
        package let code: Int

        package init(receiptID: UUID, code: Int) {
            self.receiptID = receiptID
            self.code = code
        }
    }

    /// How many tries at a receipt were answered with this code.
    package static let countAnswers = Statement<AnswerCount, Int>(
        "asked.count_answers", "select count(*) from attempts where receipt_id = $1 and code = $2",
        bind: { [.uuid($0.receiptID), .int($0.code)] },
        read: { row throws(PostgresError) in try row.int(0) })
}
