import ArgumentParser
import Commands
import Ledger
import Postgres
import RabbitMQ
import Settings
import WorkQueue

/// `makegood roles`: sets up least privilege in the database and at the broker.
struct RolesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "roles",
        abstract: "Make one database role per service, for support and for dashboards. Safe to repeat.",
        discussion: """
            Runs as the owner of the database, with the right to create roles, after `makegood migrate`: makes \
            PREFIX_ingest, PREFIX_worker, PREFIX_scheduler, PREFIX_dispatcher, PREFIX_all (the four in one process), \
            PREFIX_support (check, queue, support) and PREFIX_dashboard (the views, read-only, 5 connections, 5 s a statement), gives \
            each what it needs and nothing else, and closes the database to PUBLIC. PREFIX is MAKEGOOD_ROLE_PREFIX, \
            makegood by default.

            The roles log in themselves but get no password here, so that none passes through this program: set it \
            with psql's \\password, or let certificates decide. Later migrations renew the rights by themselves.

            At the broker (--rabbitmq) the services may not declare queues: `makegood queue declare` does, as the user \
            PREFIX_deploy. Users and passwords are made by rabbitmqctl add_user. Use a vhost of its own: who may \
            publish may publish to every queue of the vhost.

            --print and --rabbitmq reach no server. They need no address, but for the vhost in MAKEGOOD_AMQP_URL \
            (--rabbitmq).
            """)

    @Flag(
        name: .customLong("rabbitmq"),
        help: "Print the rabbitmqctl lines that give the broker's users of the same names their permissions.")
    var printsPermissions = false

    @Flag(name: .customLong("print"), help: "Print the SQL for somebody else to run, and do nothing.")
    var printsSQL = false

    func run() async throws {
        let settings = try Settings()
        if printsPermissions {
            let vhost = try BrokerConfiguration(url: settings.requiredAMQPURL()).vhost
            for rights in BrokerRights.all(queuePrefix: settings.queuePrefix, userPrefix: settings.rolePrefix) {
                print(rights.command(vhost: vhost))
            }
            return
        }
        let script = RoleScript(prefix: settings.rolePrefix)
        let sql = script.roles + "\n" + script.rights(of: DatabaseRole.allCases)
        if printsSQL {
            print("begin;\n\(sql)commit;")
            return
        }
        try await Connections.migrator(settings, "roles").run(script: sql)
        for role in DatabaseRole.allCases { print(script.name(role)) }
    }
}
