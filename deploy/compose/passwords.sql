-- The passwords of Makegood's roles, from secrets that are files. Run by compose.yaml after `makegood roles`; safe to
-- repeat. To change one: write the file, run this again, start the service anew. Without a gap: see the runbook.
\set ingest `cat /run/secrets/ingest_password`
\set worker `cat /run/secrets/worker_password`
\set scheduler `cat /run/secrets/scheduler_password`
\set dispatcher `cat /run/secrets/dispatcher_password`
\set support `cat /run/secrets/support_password`
\set dashboard `cat /run/secrets/dashboard_password`
set password_encryption = 'scram-sha-256';
alter role makegood_ingest password :'ingest';
alter role makegood_worker password :'worker';
alter role makegood_scheduler password :'scheduler';
alter role makegood_dispatcher password :'dispatcher';
alter role makegood_support password :'support';
alter role makegood_dashboard password :'dashboard';
