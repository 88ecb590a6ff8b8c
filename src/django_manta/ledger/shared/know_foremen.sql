-- The Ray, and the foremen there, to which a worker may have given runs, before it gives them any.
UPDATE manta_worker
SET
    foremen = %(foremen)s,
    ray = %(ray)s,
    ray_address = %(ray_address)s
WHERE id = %(worker)s AND lost_at IS NULL
RETURNING id
