-- The functions of the mirror. The line before each says who owns it: a writer function writes the tables there as the
-- role that has them, the others are of the owner of the tables here. A keeper function runs in the application's
-- transactions and gives way to the service's own; a shared one may be run by the writer.
--- writer mirror_add_users(list {H}.{N}mirror_user[]) returns void
begin
    insert into {S}.users ({users names}, instance_id, encrypted_password, {blank tokens})
    select {users first}, '00000000-0000-0000-0000-000000000000', '', {blanks}
    from unnest(list) n where not exists (select from {S}.users o where o.id = n.id);
end
--- writer mirror_set_user(n {H}.{N}mirror_user, step integer) returns integer
declare
    o {S}.users;
begin
    select * from {S}.users u where u.id = n.id into o;
    if not found then
        return null;
    end if;
    {groups}
    return 0;
end
--- writer mirror_blank(user_id uuid) returns void
begin
    update {S}.users u set encrypted_password = '' where u.id = user_id and u.encrypted_password <> '';
end
--- writer mirror_drop(kind text, row_id uuid) returns void
begin
    case kind
    when 'users' then delete from {S}.users where id = row_id;
    {drops}
    end case;
end
--- writer mirror_settle() returns void
begin
    -- What the application has deferred would run as the service's role at the end of its transaction.
    if pg_catalog.pg_has_role(session_user, {R literal}, 'member') then
        set constraints all immediate;
        -- What the application changes in reply is mirrored behind what is being written.
        set constraints {H}.{N}mirror_users_update deferred;
    end if;
end
--- shared mirror_users() returns setof {H}.{N}mirror_user
begin
    return query {users image};
end
--- shared mirror_deleted() returns setof uuid
begin
    return query select (a.traits ->> 'user_id')::uuid from {H}.{N}audit a
    where a.action = {user_deleted} and a.traits ? 'user_id'
        and not exists (select from {H}.{N}users u where u.id::text = a.traits ->> 'user_id');
end
--- reader mirror_user(user_id uuid) returns void
declare
    n {H}.{N}mirror_user;
    step integer := 1;
    added boolean := false;
begin
    loop
        {users image} where u.id = user_id into n;
        if not found then
            perform {H}.{N}mirror_drop('users', user_id);
            exit;
        end if;
        step := {H}.{N}mirror_set_user(n, step);
        exit when step = 0;
        if step is null then
            if added then
                raise exception '% took no row of user %', {S text} || '.users', user_id using errcode = '42501';
            end if;
            perform {H}.{N}mirror_add_users(array[n]);
            step := 1;
            added := true;
        end if;
    end loop;
    perform {H}.{N}mirror_settle();
end
--- reader mirror_to_user() returns trigger
begin
    if tg_op = 'UPDATE' then
        if new.password_hash is distinct from old.password_hash then
            perform {H}.{N}mirror_blank(new.id);
        end if;
    end if;
    perform {H}.{N}mirror_user(case when tg_op = 'DELETE' then old.id else new.id end);
    return null;
end
--- reader mirror_to_claim() returns trigger
begin
    perform from {H}.{N}users u where u.id = new.user_id for no key update;
    if found then
        perform {H}.{N}mirror_user(new.user_id);
    end if;
    return null;
end
--- shared mirror_repair(ids uuid[]) returns void
declare
    one uuid;
    live uuid[];
begin
    -- Before they are read: else an old state overwrites a new one there.
    perform from {H}.{N}users u where u.id = any(ids) order by u.id for no key update;
    -- Before users come who may have the addresses of those deleted here.
    perform {H}.{N}mirror_drop('users', i) from unnest(ids) i where not exists (select from {H}.{N}users u where u.id = i);
    perform {H}.{N}mirror_add_users(array(select row(i.*)::{H}.{N}mirror_user from ({users image} where u.id = any(ids)) i));
    foreach one in array ids loop
        perform {H}.{N}mirror_user(one);
    end loop;
    live := array(select u.id from {H}.{N}users u where u.id = any(ids) and u.deleted_at is null);
    {row repairs}
end
--- reader mirror_refuse(of_table text, what text, hint text) returns void
begin
    raise exception '%.% is a mirror: % written by the auth service only', {S text}, of_table, what
        using errcode = '42501', hint = hint;
end
--- reader mirror_changes(was jsonb, given jsonb, ours jsonb, out present jsonb, out gone text[]) returns record
begin
    select coalesce(jsonb_object_agg(e.key, e.value), '{}') from jsonb_each(given) e
    where (jsonb_typeof(was) is distinct from 'object' or e.value is distinct from was -> e.key) and e.value is distinct from ours -> e.key into present;
    gone := array(select k from jsonb_object_keys(case when jsonb_typeof(was) = 'object' then was else '{}' end) k
        where not given ? k and ours ? k);
end
--- keeper mirror_from_users() returns trigger
declare
    n {H}.{N}mirror_user;
    was_app jsonb;
    was_user jsonb;
    app_set jsonb := '{}';
    app_gone text[] := '{}';
    own_set jsonb := '{}';
    own_gone text[] := '{}';
    new_role text;
    banned boolean;
    at timestamptz := clock_timestamp();
begin
    if tg_op = 'TRUNCATE' then
        perform {H}.{N}mirror_refuse('users', 'rows are', 'Use POST /admin/users.');
    elsif tg_op = 'DELETE' then
        delete from {H}.{N}users where id = old.id;
        if found then
            update {H}.{N}outbox set payload = null, error = 'no longer wanted',
                state = case state when 'pending' then 'expired' else state end, done_at = coalesce(done_at, at)
            where user_id = old.id and (state = 'pending' or state = 'failed' and payload is not null);
            perform {H}.{N}mirror_note({user_deleted}, old.id);
        end if;
        return null;
    end if;
    {users image} where u.id = new.id into n;
    if tg_op = 'INSERT' then
        if not found then
            perform {H}.{N}mirror_refuse('users', 'rows are', 'Use POST /admin/users.');
        end if;
        was_app := {first app};
        was_user := n.raw_user_meta_data;
    else
        if new.id <> old.id and (n.id is not null or exists (select from {H}.{N}users u where u.id = old.id)) then
            perform {H}.{N}mirror_refuse('users', 'id is', 'Use POST /admin/users.');
        elsif n.id is null then
            return null; -- a user who was left out
        end if;
        {refusals}
        was_app := old.raw_app_meta_data;
        was_user := old.raw_user_meta_data;
        if new.role is distinct from old.role and new.role is distinct from n.role then
            new_role := coalesce(new.role, '');
            if new_role = '' or new_role = any({admin roles}) then
                perform {H}.{N}mirror_refuse('users', 'role is', 'Use PUT /admin/users/{id}.');
            end if;
        end if;
        banned := new.banned_until is distinct from old.banned_until and
            new.banned_until is distinct from n.banned_until;
    end if;
    if new.raw_app_meta_data is distinct from was_app then
        if jsonb_typeof(new.raw_app_meta_data) is distinct from 'object' then
            perform {H}.{N}mirror_refuse('users', 'raw_app_meta_data is', 'It has to be an object.');
        end if;
        select * from {H}.{N}mirror_changes(was_app, new.raw_app_meta_data, n.raw_app_meta_data) into app_set, app_gone;
    end if;
    if new.raw_user_meta_data is distinct from was_user then
        if jsonb_typeof(new.raw_user_meta_data) is distinct from 'object' then
            perform {H}.{N}mirror_refuse('users', 'raw_user_meta_data is', 'It has to be an object.');
        end if;
        select * from {H}.{N}mirror_changes(was_user, new.raw_user_meta_data, n.raw_user_meta_data) into own_set, own_gone;
    end if;
    if new_role is null and banned is not true and app_set = '{}' and app_gone = '{}' and own_set = '{}' and
        own_gone = '{}' then
        return null; -- the service's own writing
    end if;
    update {H}.{N}users u set updated_at = at, role = coalesce(new_role, u.role),
        app_metadata = (u.app_metadata || app_set) - app_gone,
        user_metadata = (u.user_metadata || own_set) - own_gone,
        banned_until = case when not coalesce(banned, false) then u.banned_until
            when new.banned_until = 'infinity' then '9999-12-31T00:00:00Z' else nullif(new.banned_until, '-infinity') end
    where u.id = new.id;
    if new_role is not null then
        perform {H}.{N}mirror_note({user_role_changed}, new.id);
    end if;
    if banned then
        perform {H}.{N}mirror_note(case when new.banned_until > at then {user_banned} else {user_unbanned} end, new.id);
    end if;
    return null;
end
--- reader mirror_note(action integer, user_id uuid) returns void
begin
    insert into {H}.{N}audit (at, action, actor_role, traits)
    values (clock_timestamp(), action, 'sql', jsonb_build_object('user_id', user_id));
end
