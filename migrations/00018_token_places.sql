-- Where a token was asked for, if its user has signed in from there: as in {known_places}. Tokens of different places
-- do not replace each other.
alter table {one_time_tokens} add place bytea;
