#include "shm/own.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/core/atomic.h"
#include "shm/core/suspect.h"

static void
restore_row(struct row *row, const struct row *known, uint32_t ep)
{
	if (!suspect(SUSPECT_ROWS, ep, memcmp(row, known, sizeof(*row)) != 0))
		return;
	shm_store(&row->held, known->held);
	shm_store(&row->tokens, known->tokens);
	shm_store(&row->sent, known->sent);
	shm_store(&row->kv, known->kv);
}

static void
restore_word(uint64_t *word, uint64_t known, enum suspect_where where, uint32_t me)
{
	if (suspect(where, me, shm_load(word) != known))
		shm_store(word, known);
}

static void
restore_rows(const struct seg *seg, const struct own *own)
{
	struct row *rows = seg_row(seg, own->me, 0);
	uint32_t *quotas = share_of(seg, own->me, 0, QUOTA);
	const uint32_t nrows = seg->hdr->max_endpoints, nquotas = seg->hdr->max_quotas;

	/* all at once: mostly nothing differs */
	if (memcmp(rows, own->rows, nrows * sizeof(*rows)) != 0)
		for (uint32_t ep = 0; ep < nrows; ep++)
			restore_row(&rows[ep], &own->rows[ep], ep);
	if (memcmp(quotas, own->quotas, nquotas * sizeof(*quotas)) == 0)
		return;
	for (uint32_t i = 0; i < nquotas; i++)
		if (suspect(SUSPECT_CLIENTS, i, shm_load(&quotas[i]) != own->quotas[i]))
			shm_store(&quotas[i], own->quotas[i]);
}

void
own_begin(struct seg *seg, uint32_t me)
{
	struct own *own = MEM_NEW(struct own);

	own->me = me;
	own->seq = shm_load(&seg->procs[me].seq);
	own->rows = mem_array(seg->hdr->max_endpoints, sizeof(*own->rows));
	own->quotas = mem_array(seg->hdr->max_quotas + 1, sizeof(*own->quotas));
	seg->own = own;
	restore_rows(seg, own);
}

void
own_end(struct seg *seg)
{
	if (seg->own == NULL)
		return;
	free(seg->own->rows);
	free(seg->own->quotas);
	free(seg->own);
	seg->own = NULL;
}

void
own_restore(struct seg *seg)
{
	const struct own *own = seg->own;
	struct proc_slot *self = &seg->procs[own->me];

	restore_word(&seg->readers[own->me].ctr, 0, SUSPECT_READERS, own->me);
	restore_word(&self->journal, 0, SUSPECT_JOURNALS, own->me);
	restore_word(&self->seq, own->seq, SUSPECT_JOURNALS, own->me);
	restore_rows(seg, own);
}
