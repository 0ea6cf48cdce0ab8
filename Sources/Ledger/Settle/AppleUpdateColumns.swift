import Encoding
import Foundation
import Postgres
import Purchases

/// The Apple updates of a batch of verdicts by columns, the last parameters of the settle statement, behind those of the
/// matches. Empty where no app has any.
struct AppleUpdateColumns {
    private var receipts: [UUID] = []
    private var appleUpdates: [(appID: String, appleUpdate: AppleUpdate)] = []

    init(_ verdicts: [Verdict]) {
        for verdict in verdicts where !verdict.appleUpdates.isEmpty {
            receipts += repeatElement(verdict.receiptID, count: verdict.appleUpdates.count)
            appleUpdates += verdict.appleUpdates.map { (verdict.appID, $0) }
        }
    }

    /// `$n` of the n-th column.
    private static func column(_ number: Int) -> String { "$\(35 + MatchColumns().values.count + number)" }
    /// `$n` of the n-th value behind them.
    static func parameter(after number: Int) -> String { column(AppleUpdateColumns([]).values.count + number) }

    /// A token is the owner's whom this very verdict has found, or has found again where Apple confirmed what was given
    /// on trust: the order that it was given by. That a purchase is finished may be told whenever.
    static let insert = """
        insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
        select i.transaction, i.kind, i.app, i.environment, i.original, i.purchased_at, i.token::uuid
        from unnest(\(column(1))::uuid[], \(column(2))::text[], \(column(3))::text[], \(column(4))::text[],
            \(column(5))::text[], \(column(6))::text[], \(column(7))::text[], \(column(8))::timestamptz[],
            \(column(9))::text[])
          as i(receipt, transaction, kind, becomes, app, environment, original, purchased_at, token)
        where case i.kind
          when 'set_token' then (i.transaction, i.receipt) in (select transaction_id, receipt_id from won)
            or (i.transaction, i.receipt) in (select transaction, receipt from outcome where mark = 'confirmed')
              and i.token::uuid = (select order_id from grants where transaction_id = i.transaction)
          else (i.transaction, i.receipt, i.becomes) in (select transaction, receipt, state from outcome
            where reason is distinct from 'id_collision') end
        order by i.transaction, i.kind
        on conflict do nothing
        """

    var values: [Value] {
        [
            .uuids(receipts), .texts(appleUpdates.map(\.appleUpdate.transaction.id)),
            .texts(appleUpdates.map(\.appleUpdate.kind.rawValue)),
            .texts(appleUpdates.map(\.appleUpdate.outcome.rawValue)),
            .texts(appleUpdates.map(\.appID)), .texts(appleUpdates.map(\.appleUpdate.transaction.environment)),
            .texts(appleUpdates.map(\.appleUpdate.transaction.originalID)),
            .dates(appleUpdates.map(\.appleUpdate.transaction.purchasedAt)),
            .texts(appleUpdates.map(\.appleUpdate.token?.text)),
        ]
    }
}
