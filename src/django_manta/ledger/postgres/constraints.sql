-- Foreign keys of other tables are checked here, not at commit: one refused row must not sink a batch.
SET CONSTRAINTS ALL IMMEDIATE
