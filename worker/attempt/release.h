/*
 * The release rule: once a prefill engine has committed KV for a request, a decode engine is told, whoever has gone away in
 * between, since only its fetch frees those blocks (protocols.md 2.5).
 *
 * Process: worker.
 */
#pragma once

struct pair;

/*
 * The attempt is over without the client's answer, and what it left at its engines is let go: by a request of its own,
 * which takes over the legs that are still needed for that; by a word that a decode engine refuses, where the hand-over
 * is used up; or by /abort_request.  What is left in the pair is for its owner to end.
 */
void release_attempt(struct pair *pair);
/*
 * The pair's decode engine has failed or refused what it was told: if its prefill engine has nothing more to say the
 * hand-over is named to decode engines in a way that they refuse.  The pair's legs stay as they are.
 */
void release_used_up(struct pair *pair);
