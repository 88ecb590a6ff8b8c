-- End a run whose row cannot be moved or read as it is, and give its columns values that can be.
UPDATE manta_run
SET
    state = 'FAILED',
    reason = %(reason)s,
    token = NULL,
    worker = '',
    due_at = NULL,
    finished_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now'),
    refused_at = NULL,
    result = NULL,
    result_signature = '',
    delegate = NULL,
    attempts = (
        SELECT count(*) FROM manta_attempt AS attempt
        WHERE attempt.run_id = manta_run.id AND attempt.outcome <> 'RETURNED'
    ),
    -- A value of another type becomes a number here, 0 as a rule.
    failures = MIN(MAX(CAST(failures AS integer), 0), 999999),
    crashes = MIN(MAX(CAST(crashes AS integer), 0), 999999),
    losses = MIN(MAX(CAST(losses AS integer), 0), 999999),
    priority = MIN(MAX(CAST(priority AS integer), -100), 100),
    suspect = 0,
    enqueued_at = CASE WHEN typeof(enqueued_at) <> 'text' OR julianday(enqueued_at) IS NULL OR enqueued_at < '1970-01-01' OR enqueued_at > '9999-12-31' THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') ELSE enqueued_at END,
    deadline = CASE WHEN typeof(deadline) <> 'text' OR julianday(deadline) IS NULL OR deadline < '1970-01-01' OR deadline > '9999-12-31' THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') ELSE deadline END,
    run_after = CASE WHEN run_after IS NULL OR typeof(run_after) <> 'text' OR julianday(run_after) IS NULL OR run_after < '1970-01-01' OR run_after > '9999-12-31' THEN NULL ELSE run_after END,
    expires_at = CASE WHEN expires_at IS NULL OR typeof(expires_at) <> 'text' OR julianday(expires_at) IS NULL OR expires_at < '1970-01-01' OR expires_at > '9999-12-31' THEN NULL ELSE expires_at END,
    started_at = CASE WHEN started_at IS NULL OR typeof(started_at) <> 'text' OR julianday(started_at) IS NULL OR started_at < '1970-01-01' OR started_at > '9999-12-31' THEN NULL ELSE started_at END,
    last_attempted_at = CASE WHEN last_attempted_at IS NULL OR typeof(last_attempted_at) <> 'text' OR julianday(last_attempted_at) IS NULL OR last_attempted_at < '1970-01-01' OR last_attempted_at > '9999-12-31' THEN NULL ELSE last_attempted_at END
WHERE
    id = %(id)s
    AND (state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY') OR worker = %(worker)s AND worker <> '')
RETURNING
    id,
    dependents
