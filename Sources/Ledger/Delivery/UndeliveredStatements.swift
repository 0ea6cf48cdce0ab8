package import Postgres

extension Statements {
    /// A page of the feed with a look at an endpoint.
    package struct UndeliveredQuestion: Sendable {
        package var filter: EndpointFilter
        package var after: EventCursor
        package var limit: Int

        package init(filter: EndpointFilter, after: EventCursor, limit: Int) {
            self.filter = filter
            self.after = after
            self.limit = limit
        }
    }

    /// A page of one app's feed, each event with whether the endpoint gets it and has not taken it. An event without a
    /// number is one of these if a dispatcher is yet to number it.
    package static let readUndelivered = Statement<UndeliveredQuestion, (event: Event, isUndelivered: Bool)>(
        "ledger.read_undelivered",
        feedPage(
            selecting: """
                sequence, \(EndpointFilter.passes(
                        type: "type", environment: "body ->> 'environment'", types: "$6::text",
                        environments: "$7::text"))
                  and case when sequence is null then (xid, id) > (select p.xid, p.id from event_progress p)
                    else exists (
                      select from deliveries d
                      where d.endpoint = $5 and d.stream = s.stream and s.sequence > d.done_sequence
                        and s.sequence <= d.last_sequence) end
                """),
        bind: { question in
            [
                .texts([question.filter.key.appID]), .int(question.after.place), .int(question.after.id),
                .int(question.limit), .uuid(question.filter.key.id), .text(question.filter.typesText),
                .text(question.filter.environmentsText),
            ]
        },
        read: { row throws(PostgresError) in (try readNumberedEvent(row), try row.bool(11)) })
}
