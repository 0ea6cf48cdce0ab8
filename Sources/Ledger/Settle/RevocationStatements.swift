import Postgres
import Purchases

// What Apple's end of a purchase means, in SQL: as ``Transaction/ending``, and held against it by a test.
extension Statements {
    /// Of a row of `transactions`: why nothing of it is left to give, `refunded` or `withdrawn`; `review` where Apple
    /// took it back for a reason that is not known here; null where it stands, or was paid for all the same.
    ///
    /// - Parameter row: has all columns of the table.
    static func takenBack(_ row: String) -> String { "nullif(\(ending(row)), 'in_part')" }

    /// Of a row of `transactions`: whether Apple gave money back for it, all or in part, or may have.
    static func isRefund(_ row: String) -> String {
        "coalesce(\(ending(row)) in ('refunded', 'in_part', 'review'), false)"
    }

    /// SQL: a select of the columns that ``takenBack(_:)`` reads, and of those by which facts are compared.
    static let factsOfEnd = """
        select app_id, environment, original_transaction_id, product_id, kind, expires_at, revoked_at, ownership, signed_at,
          facts from transactions
        """

    /// Of a row of `transactions`: how Apple ended it, as `RowReader.ending` reads it; null where it stands, or was
    /// paid for all the same.
    static func ending(_ row: String) -> String {
        let type = "\(row).facts ->> 'revocationType'"
        return """
            case when \(row).revoked_at is null then null
              when \(row).ownership in (\(sharedOwnerships)) or \(type) in (\(withdrawals)) then '\(Reason.withdrawn.rawValue)'
              when \(isUpgraded(row)) or \(hasSuccessor(row)) then null
              when \(type) = '\(Revocation.prorated)'
                and \(row).facts -> 'revocationPercentage' < '\(Revocation.whole)'::jsonb then 'in_part'
              when \(type) not in ('\(Revocation.full)', '\(Revocation.prorated)')
                or \(row).facts ->> 'revocationReason' not in (\(refundReasons)) then '\(Reason.review.rawValue)'
              else '\(Reason.refunded.rawValue)' end
            """
    }

    /// Another product took its place, and Apple gave no money back for a reason of its own. A legacy receipt, whose
    /// facts have no `reason`, has the reason 0 for the upgrade itself.
    private static func isUpgraded(_ row: String) -> String {
        let reason = "\(row).facts ->> 'revocationReason'"
        return """
            \(row).facts ->> 'isUpgraded' = 'true'
                and (\(row).facts ->> 'revocationType' = '\(Revocation.full)' or \(reason) = '\(Revocation.issueInApp)'
                  or \(reason) = '\(Revocation.otherReason)' and \(row).facts ->> 'reason' is not null) is not true
            """
    }

    /// Another product of its chain was bought within a minute of its end, where that may explain it. By its chain
    /// alone: hardly any row is asked.
    private static func hasSuccessor(_ row: String) -> String {
        let type = "\(row).facts ->> 'revocationType'"
        return """
            case when \(row).expires_at is not null and \(row).kind is distinct from '\(Transaction.Kind.nonRenewing.rawValue)'
              and \(row).facts ->> 'isUpgraded' is distinct from 'true'
              and (\(type) is null and \(row).facts ->> 'reason' is null
                or \(type) not in ('\(Revocation.full)', '\(Revocation.prorated)')
                or \(row).facts ->> 'revocationReason' not in (\(refundReasons)))
              then (\(successor(original: "\(row).original_transaction_id", app: "\(row).app_id",
                environment: "\(row).environment", product: "\(row).product_id", endedAt: "\(row).revoked_at"))) is true
              else false end
            """
    }

    /// True, or no row. The table has another name inside, because the callers' row may be called `transactions`.
    static func successor(
        original: String, app: String, environment: String, product: String, endedAt: String
    ) -> String {
        """
        select true from (select app_id, environment, product_id, purchased_at from transactions own
            where own.original_transaction_id = \(original) offset 0) s
          where s.app_id = \(app) and s.environment = \(environment) and s.product_id <> \(product)
            and s.purchased_at between \(endedAt) - \(successorWithin) and \(endedAt) + \(successorWithin)
          limit 1
        """
    }

    static let sharedOwnerships = Transaction.sharedOwnerships.map { "'\($0)'" }.joined(separator: ", ")
    private static let withdrawals = Revocation.withdrawals.map { "'\($0)'" }.joined(separator: ", ")
    private static let refundReasons = Revocation.refundReasons.map { "'\($0)'" }.joined(separator: ", ")
    private static let successorWithin = "interval '\(Int(Transaction.successorWithin)) seconds'"
}

extension RowReader {
    /// A column of ``Statements/ending(_:)``.
    func ending(_ column: Int) throws(PostgresError) -> Transaction.Ending? {
        switch try optionalText(column) {
        case nil: nil
        case Reason.refunded.rawValue?: .refunded
        case "in_part"?: .refundedInPart
        case Reason.withdrawn.rawValue?: .withdrawn
        case Reason.review.rawValue?: .unknown
        default: throw undecodable(column)
        }
    }
}
